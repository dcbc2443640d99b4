"""Fairlead's image, those of its examples with MPI and with PyTorch, without a container engine.

The steps are those of the Dockerfile, in a chroot over an overlay of a Debian base; what a step
adds is a layer. Layers are kept in the cache under the digest of what they are made of, so that a
change of the source makes the topmost layer only. Equal inputs give equal layers: times are zero,
compiled files are checked by no time, and paths are sorted.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tools.cluster.archive import MACHINES, PATH, Image, write_archive, write_layer
from tools.cluster.foreign import ForeignTree
from tools.cluster.layout import cache_directory

ROOT = Path(__file__).resolve().parents[2]
SUITE = "bookworm"
PACKAGES = ("python3", "python3-venv", "ca-certificates")
#: Neither is read in a container, and both are half of what the packages bring.
#: Of Debian's mmdebstrap: /bin and /lib as links into /usr, as its installed systems have them.
MERGED_USR = Path("/usr/share/mmdebstrap/hooks/merged-usr")
#: Of wheels that run on the C library of the suite, the newest first; changes with how a tree of
#: another architecture is completed.
MANYLINUX, FOREIGN_VERSION = ("_2_34", "_2_28", "_2_27", "_2_26", "_2_24", "_2_17", "2014"), "1"
LEFT_OUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*")
#: Distributions of the examples, locked with the development tools.
EXAMPLES = (
    "mpi4py",
    "mpich",
    "scikit-learn",
    "scipy",
    "joblib",
    "cloudpickle",
    "threadpoolctl",
    "narwhals",
)
USER = "65532:65532"
_TREE = "opt/fairlead"
#: What apt leaves beside the packages, and what computing needs no part of: drivers of displays and
#: tests, which are a third of the layer.
_TORCH_LEFT_OUT = (
    "/var/lib/apt/lists /var/cache /var/log /usr/lib/*/dri /usr/lib/libtorch-test "
    "/usr/lib/python3/dist-packages/torch/bin/test_*"
)
_CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
_PASSED_ON = re.compile(r"(?i)^(https?_proxy|no_proxy|pip_(index_url|extra_index_url|.*timeout))$")
_PIP = "/opt/pip/bin/pip --python /opt/fairlead/bin/python"
_COMPILE = "/opt/fairlead/bin/python -m compileall -q --invalidation-mode unchecked-hash"
#: $1 whole, $2 lower directories, $3 upper, $4 work, $5 input, $6 pip's cache, $7 the step.
_IN_CHROOT = """
mount -t overlay overlay -o "lowerdir=$2,upperdir=$3,workdir=$4" "$1"
cp -L /etc/resolv.conf /etc/hosts "$1/etc/"
mount --rbind /dev "$1/dev"
mount -t proc proc "$1/proc"
mount -t tmpfs tmpfs "$1/tmp"
mkdir "$1/tmp/input" "$1/tmp/cache"
mount --bind "$5" "$1/tmp/input"
mount --bind "$6" "$1/tmp/cache"
umask 022
cd "$1/tmp/input"
exec chroot "$1" sh -euc "cd /tmp/input; $7"
"""
Say = Callable[[str], None]


class ImageError(Exception):
    """A layer could not be made; the message has the end of what its step printed."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer as a tar file, and as a directory for the layers above it."""

    key: str
    directory: Path

    @property
    def tar(self) -> Path:
        """The layer itself."""
        return self.directory / "layer.tar"

    @property
    def root(self) -> Path:
        """What the layer adds, unpacked."""
        return self.directory / "root"


def version() -> str:
    """Return the version of the project, which is its image's tag."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def fairlead_name() -> str:
    """Return the name of Fairlead's image: what the chart installs by default."""
    return f"docker.io/library/fairlead:{version()}"


def examples_name() -> str:
    """Return the name of the image with MPI and the examples."""
    return f"docker.io/library/fairlead-examples:{version()}"


def torch_name() -> str:
    """Return the name of the image with PyTorch and the examples; Fairlead is not in it."""
    return f"docker.io/library/fairlead-torch:{version()}"


class Builder:
    """Makes layers in a directory of the cache; one at a time on a machine."""

    def __init__(self, cache: Path, say: Say) -> None:
        self.cache = cache
        self._say = say

    def images(self, *, with_examples: bool) -> list[Image]:
        """Return Fairlead's image and, on request, that of the examples, with all their layers."""
        with self._alone():
            return self._images(with_examples=with_examples)

    def torch(self) -> Image:
        """Return the image with PyTorch: Debian's, which computes on CPUs alone."""
        with self._alone():
            base = self._base()
            step = f"""apt-get -qq update
DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends python3-torch
rm -rf {_TORCH_LEFT_OUT}"""
            torch = self._step("torch", [base], step, tree=".")
            layers = (base.tar, torch.tar, self._examples().tar)
            config = {"Env": [f"PATH={PATH}"], "WorkingDir": "/work", "Cmd": ["/bin/sh"]}
            return Image(torch_name(), layers, config)

    def platforms(self) -> list[Image]:
        """Return Fairlead's image for this machine's architecture and for the others.

        Nothing of another architecture runs here. Its base is unpacked, its dependencies are the
        wheels of the lock for it, and the layer of the project is the same one.
        """
        with self._alone():
            [own] = self._images(with_examples=False)
            others = [
                replace(own, machine=machine, layers=(
                    (base := self._foreign_base(machine)).tar,
                    self._foreign_dependencies(base, machine).tar, own.layers[-1],
                ))
                for machine in MACHINES if machine != own.machine
            ]  # fmt: skip
            return [own, *others]

    @contextmanager
    def _alone(self) -> Generator[None]:
        self.cache.mkdir(parents=True, exist_ok=True)
        with (self.cache / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _images(self, *, with_examples: bool) -> list[Image]:
        base = self._base()
        pip = self._step("pip", [base], "python3 -m venv /opt/pip", tree="opt/pip")
        dependencies = self._dependencies(base, pip)
        project = self._project(base, pip, dependencies)
        environment = [f"PATH=/opt/fairlead/bin:{PATH}", "PYTHONUNBUFFERED=1"]
        own = Image(
            fairlead_name(), (base.tar, dependencies.tar, project.tar),
            {
                "Env": [*environment, "PYTHONDONTWRITEBYTECODE=1"], "User": USER,
                "WorkingDir": "/", "Entrypoint": ["fairlead"], "Cmd": ["controller"],
            },
        )  # fmt: skip
        if not with_examples:
            return [own]
        mpi = self._mpi(base, pip, dependencies)
        examples = self._examples()
        layers = (base.tar, dependencies.tar, project.tar, mpi.tar, examples.tar)
        config = {
            "Env": [*environment, "OMP_NUM_THREADS=1", "OPENBLAS_NUM_THREADS=1"],
            "WorkingDir": "/work", "Cmd": ["/bin/sh"],
        }  # fmt: skip
        return [own, Image(examples_name(), layers, config)]

    def _base(self) -> Layer:
        key = _digest("base", SUITE, *PACKAGES, *LEFT_OUT, os.uname().machine)

        def make(root: Path) -> None:
            command = [
                "mmdebstrap", "--mode=root", "--variant=minbase", f"--include={','.join(PACKAGES)}",
                *(f"--dpkgopt=path-exclude={pattern}" for pattern in LEFT_OUT),
                SUITE, str(root), mirror(),
            ]  # fmt: skip
            run(["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", *command],
                {**os.environ, "SOURCE_DATE_EPOCH": "1"})  # fmt: skip
            for cached in (*root.glob("var/lib/apt/lists/*_*"), *root.glob("var/cache/apt/*.bin")):
                cached.unlink()

        return self._layer("base", key, make, (".",))

    def _foreign_base(self, machine: str) -> Layer:
        """Return the base for another architecture, with what maintainer scripts made in ours."""
        native, arch = self._base(), MACHINES[machine]
        tree = ForeignTree(native.root, arch)
        packages = tree.packages()
        key = _digest(native.key, machine, FOREIGN_VERSION, *packages)

        def make(root: Path) -> None:
            run(["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
                 "mmdebstrap", "--mode=root", "--variant=extract", f"--architectures={arch}",
                 f"--include={','.join(packages)}", f"--hook-dir={MERGED_USR}",
                 *(f"--dpkgopt=path-exclude={pattern}" for pattern in LEFT_OUT),
                 SUITE, str(root), mirror()], {**os.environ, "SOURCE_DATE_EPOCH": "1"})  # fmt: skip
            for cached in (*root.glob("var/lib/apt/lists/*_*"), *root.glob("var/cache/apt/**/*")):
                if cached.is_file():
                    cached.unlink()
            tree.complete(root)

        return self._layer(f"{arch}.base", key, make, (".",))

    def _foreign_dependencies(self, base: Layer, machine: str) -> Layer:
        """Return the dependencies for another architecture: its wheels of the same lock."""
        native = self._base()
        pip = self._step("pip", [native], "python3 -m venv /opt/pip", tree="opt/pip")
        lock = (ROOT / "requirements" / "run.lock").read_text()
        platforms = " ".join(f"--platform manylinux{tag}_{machine}" for tag in MANYLINUX)
        step = f"""python3 -m venv --without-pip /opt/fairlead
to=$(echo /opt/fairlead/lib/python3*/site-packages)
/opt/pip/bin/pip install -q --no-compile --require-hashes --no-deps --only-binary :all: \
  --implementation cp {platforms} --target "$to" -r requirements.lock
rm -rf "$to/bin"
{_COMPILE} /opt/fairlead/lib"""
        name = f"{MACHINES[machine]}.dependencies"
        return self._step(
            name, [pip, native], step, more=base.key, files={"requirements.lock": lock}
        )

    def _dependencies(self, base: Layer, pip: Layer) -> Layer:
        lock = (ROOT / "requirements" / "run.lock").read_text()
        step = f"""python3 -m venv --without-pip /opt/fairlead
{_PIP} install -q --no-compile --require-hashes --no-deps -r requirements.lock
{_PIP} check
{_COMPILE} /opt/fairlead/lib"""
        return self._step("dependencies", [pip, base], step, files={"requirements.lock": lock})

    def _project(self, base: Layer, pip: Layer, dependencies: Layer) -> Layer:
        sources = [ROOT / name for name in ("pyproject.toml", "README.md", "LICENSE")]
        sources += sorted(
            path for path in (ROOT / "src").rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        )  # fmt: skip
        key = _digest(*(f"{path.relative_to(ROOT)} {_file_digest(path)}" for path in sources))
        step = f"""{_PIP} install -q --no-compile --no-deps --no-index fairlead-*.whl
{_COMPILE} /opt/fairlead/lib/python3*/site-packages/fairlead"""
        return self._step(
            "project", [dependencies, pip, base], step, more=key, prepare=_build_wheel
        )

    def _mpi(self, base: Layer, pip: Layer, dependencies: Layer) -> Layer:
        lock = locked((ROOT / "requirements" / "dev.lock").read_text(), EXAMPLES)
        step = f"""{_PIP} install -q --no-compile --require-hashes --no-deps -r requirements.lock
{_PIP} check
{_COMPILE} /opt/fairlead/lib"""
        files = {"requirements.lock": lock}
        return self._step("mpi", [dependencies, pip, base], step, files=files)

    def _examples(self) -> Layer:
        files = sorted(path for path in (ROOT / "examples").rglob("*") if path.is_file())
        files = [path for path in files if "__pycache__" not in path.parts]
        key = _digest(*(f"{path.relative_to(ROOT)} {_file_digest(path)}" for path in files))

        def make(root: Path) -> None:
            for path in files:
                target = root / "work" / path.relative_to(ROOT)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, target)

        return self._layer("examples", key, make, ("work",))

    def _step(
        self,
        name: str,
        below: Sequence[Layer],
        step: str,
        *,
        tree: str = _TREE,
        files: dict[str, str] | None = None,
        more: str = "",
        prepare: Callable[[Path], None] = lambda _: None,
    ) -> Layer:
        """Return the layer that `step` adds to `tree` when it runs over the layers `below`.

        `below` has the topmost first. `files` and what `prepare` writes are the step's directory.
        """
        given = files or {}
        key = _digest(step, more, *(each.key for each in below), *given, *given.values())

        def make(root: Path) -> None:
            with tempfile.TemporaryDirectory(dir=self.cache, prefix="step-") as scratch:
                for part in ("whole", "work", "input"):
                    Path(scratch, part).mkdir()
                for file, text in given.items():
                    Path(scratch, "input", file).write_text(text)
                prepare(Path(scratch, "input"))
                self._run_step(Path(scratch), [each.root for each in below], root, step)

        return self._layer(name, key, make, (tree,))

    def _run_step(self, scratch: Path, below: Sequence[Path], root: Path, step: str) -> None:
        wheels = self.cache / "pip"
        wheels.mkdir(exist_ok=True)
        environment = {name: value for name, value in os.environ.items() if _PASSED_ON.match(name)}
        environment |= {
            "PATH": PATH, "HOME": "/root", "PYTHONHASHSEED": "0", "PIP_ROOT_USER_ACTION": "ignore",
            "PIP_CACHE_DIR": "/tmp/cache", "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }  # fmt: skip
        if _CA_BUNDLE.exists():  # a machine behind a proxy may trust an authority of its own
            shutil.copy(_CA_BUNDLE, scratch / "input" / "ca.crt")
            environment["PIP_CERT"] = "/tmp/input/ca.crt"
        run(["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private",
             "sh", "-euc", _IN_CHROOT, "sh", str(scratch / "whole"), ":".join(map(str, below)),
             str(root), str(scratch / "work"), str(scratch / "input"), str(wheels), step],
            environment)  # fmt: skip

    def _layer(
        self, name: str, key: str, make: Callable[[Path], None], subtrees: Sequence[str]
    ) -> Layer:
        """Return a layer of the cache, made by `make` when it is not there yet."""
        layer = Layer(key, self.cache / f"{name}-{key}")
        if layer.directory.exists():
            return layer
        self._say(f"image: {name}")
        new = Path(tempfile.mkdtemp(dir=self.cache, prefix="new-"))
        try:
            (new / "root").mkdir()
            new.chmod(0o755)
            make(new / "root")
            write_layer(new / "layer.tar", new / "root", subtrees)
            for old in self.cache.glob(f"{name}-*"):
                shutil.rmtree(old)
            new.rename(layer.directory)
        finally:
            shutil.rmtree(new, ignore_errors=True)
        return layer


def mirror() -> str:
    """Return where packages of Debian are had from."""
    return os.environ.get("FAIRLEAD_DEBIAN_MIRROR", "http://deb.debian.org/debian")


def run(command: list[str], environment: dict[str, str]) -> None:
    """Run a command; ImageError with the end of its output when it fails."""
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, errors="replace", check=False,
    )  # fmt: skip
    if done.returncode:
        raise ImageError(f"exit code {done.returncode}:\n{done.stdout[-3000:]}")


def _build_wheel(directory: Path) -> None:
    """Build the project's wheel with the locked build tool of this environment."""
    run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation",
         "--no-index", "--wheel-dir", str(directory), str(ROOT)], dict(os.environ))  # fmt: skip


def locked(lock: str, names: Sequence[str]) -> str:
    """Return the entries of a lock file for some distributions, with their hashes."""
    entries = re.findall(r"^(\S+?)==(?:.*\\\n)(?:    .*\n)*", lock, flags=re.MULTILINE)
    missing = sorted(set(names) - set(entries))
    if missing:
        raise ImageError(f"requirements/dev.lock lacks {', '.join(missing)}")
    whole = re.finditer(r"^(\S+?)==(?:.*\\\n)(?:    .*\n)*", lock, flags=re.MULTILINE)
    return "".join(entry.group() for entry in whole if entry.group(1) in names)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _file_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def build_archive(say: Say, *, with_examples: bool, cache: Path | None = None) -> Path:
    """Return the archive of Fairlead's image, or of both images, made when it is not there yet."""
    builder = Builder(cache or cache_directory() / "images", say)
    name = "fairlead-examples" if with_examples else "fairlead"
    return _archive(builder, name, builder.images(with_examples=with_examples))


def build_platforms_archive(say: Say, *, cache: Path | None = None) -> Path:
    """Return the archive of Fairlead's image for all architectures, made when it is not there."""
    builder = Builder(cache or cache_directory() / "images", say)
    return _archive(builder, "platforms-gzip", builder.platforms(), is_compressed=True)


def build_torch_archive(say: Say) -> Path:
    """Return the archive of the image with PyTorch, made when it is not there yet."""
    builder = Builder(cache_directory() / "images", say)
    return _archive(builder, "fairlead-torch", [builder.torch()])


def _archive(
    builder: Builder, name: str, images: Sequence[Image], *, is_compressed: bool = False
) -> Path:
    layers = [layer for image in images for layer in image.layers]
    target = builder.cache / f"{name}.{_digest(*map(str, layers), repr(images))}.tar"
    if not target.exists():
        for old in builder.cache.glob(f"{name}.*.tar"):
            old.unlink()
        write_archive(target, images, is_compressed=is_compressed)
    return target
