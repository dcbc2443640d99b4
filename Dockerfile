# The image of `fairlead controller`: locked dependencies, nobody's account, nothing written but /tmp.
#
#   docker build --build-arg PYTHON_IMAGE=python:3.12-slim --tag REGISTRY/fairlead:0.1.0 .
ARG PYTHON_IMAGE=python:3.12-slim

FROM ${PYTHON_IMAGE} AS build
WORKDIR /src
COPY requirements/run.lock requirements/run.lock
RUN python -m venv /opt/fairlead \
    && /opt/fairlead/bin/pip install --no-cache-dir --require-hashes -r requirements/run.lock
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN python -m venv /opt/build \
    && /opt/build/bin/pip wheel --no-cache-dir --no-deps --wheel-dir /tmp/wheel . \
    && /opt/fairlead/bin/pip install --no-cache-dir --no-deps /tmp/wheel/*.whl \
    && /opt/fairlead/bin/python -m compileall -q /opt/fairlead/lib

FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="fairlead" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/fairlead /opt/fairlead
ENV PATH=/opt/fairlead/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 65532:65532
ENTRYPOINT ["fairlead"]
CMD ["controller"]
