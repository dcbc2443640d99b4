# The image of `fairlead controller`: locked dependencies, nobody's account, nothing written but /tmp.
#
#   docker build --build-arg PYTHON_IMAGE=python:3.12-slim@sha256:DIGEST --build-arg VERSION=0.1.0 \
#     --build-arg REVISION="$(git rev-parse HEAD)" --tag REGISTRY/fairlead:0.1.0 .
#
# Name the base by its digest for builds that can be repeated. No init process is needed: the
# controller starts no children that it does not await, and answers SIGTERM itself.
ARG PYTHON_IMAGE=python:3.12-slim

FROM ${PYTHON_IMAGE} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
COPY requirements/run.lock requirements/build.lock requirements/
RUN python -m venv /opt/fairlead \
    && /opt/fairlead/bin/pip install --require-hashes --no-deps -r requirements/run.lock \
    && python -m venv /opt/build \
    && /opt/build/bin/pip install --require-hashes --no-deps -r requirements/build.lock
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN /opt/build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /tmp/wheel . \
    && /opt/fairlead/bin/pip install --no-deps --no-index /tmp/wheel/*.whl \
    && /opt/fairlead/bin/pip check \
    && /opt/fairlead/bin/pip uninstall --yes pip \
    && python -m compileall -q /opt/fairlead/lib

FROM ${PYTHON_IMAGE}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="fairlead" \
      org.opencontainers.image.description="Turns a Kubernetes cluster into a machine-learning research cluster" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /opt/fairlead /opt/fairlead
ENV PATH=/opt/fairlead/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 65532:65532
WORKDIR /
EXPOSE 8080 8443 9443
ENTRYPOINT ["fairlead"]
CMD ["controller"]
