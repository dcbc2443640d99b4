"""Makes a release: the packages twice, byte for byte the same, tried, with what belongs to them.

    python -m tools.release.build [--directory dist] [--key KEY] [--image] [--check]

The checks of the source (`make lint test`) are of `make release`, which calls this after them, and
before them with --check, so that what is missing shows before the hour that the tests take. In
the directory afterwards: wheel, sdist, SBOM (CycloneDX), notes, with --image an archive of the
image, and the checksums of all of these. With a key (`sign.py`) also the provenance of the files, a
signature beside each, and the public key.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from tools.cluster.images import build_platforms_archive
from tools.release.sign import BadKey, Json, Signer, provenance, sign_image

from fairlead import __version__

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "requirements" / "run.lock"
#: Of the environment of `requirements/release.lock`.
TOOLS = ROOT / ".cache" / "release" / "bin"


class Unfit(Exception):
    """There is something that a release may not have; the text says what and the remedy."""


def run(command: Sequence[str | Path], directory: Path = ROOT, **environment: str) -> str:
    """Run a command and return what it prints; Unfit with its last lines."""
    done = subprocess.run(
        list(map(str, command)), cwd=directory, env={**os.environ, **environment}, text=True,
        capture_output=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise Unfit(f"{' '.join(map(str, command))}: {(done.stderr or done.stdout)[-2000:]}")
    return done.stdout


def notes(changelog: str, version: str) -> str:
    """Return what the changelog says of a version; Unfit when it says nothing."""
    found = re.search(
        rf"^## \[?{re.escape(version)}\]?[^\n]*\n(.*?)(?=^## |\Z)",
        changelog,
        re.MULTILINE | re.DOTALL,
    )
    if found is None or not found[1].strip():
        raise Unfit(f"CHANGELOG.md has no section '## {version}': name what is under Unreleased so")
    return found[1].strip() + "\n"


def build(directory: Path, epoch: str) -> dict[str, str]:
    """Build wheel and sdist of the commit, in a copy of its own; return the digests by name."""
    with TemporaryDirectory() as scratch:
        packed, source = Path(scratch) / "source.tar", Path(scratch) / "source"
        run(["git", "archive", "--output", packed, "HEAD"])
        shutil.unpack_archive(packed, source, filter="data")
        for target in ("wheel", "sdist"):
            command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", directory]
            run(command, source, SOURCE_DATE_EPOCH=epoch)
    return digests(directory)


def digests(directory: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a directory, by name."""
    files = sorted(path for path in directory.iterdir() if path.is_file())
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def describe(wheel: Path, sbom: Path) -> None:
    """Install the wheel with the locked packages alone, try it, and write its SBOM."""
    with TemporaryDirectory() as scratch:
        python = Path(scratch) / "bin" / "python"
        run([sys.executable, "-m", "venv", scratch])
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        run([*pip, "--require-hashes", "-r", LOCK])
        run([*pip, "--no-deps", wheel])
        said = run([Path(scratch) / "bin" / "fairlead", "--version"]).strip()
        if said != f"fairlead {__version__}":
            raise Unfit(f"the wheel says '{said}'")
        run([python, "-m", "pip", "uninstall", "--quiet", "--yes", "pip", "setuptools"])
        run([TOOLS / "cyclonedx-py", "environment", "--output-reproducible", "--of", "JSON",
             "--pyproject", ROOT / "pyproject.toml", "-o", sbom, python])  # fmt: skip


def add_image(directory: Path, version: str, signer: Signer | None, made_of: Json) -> None:
    """Put an archive of the image of all platforms into the directory, signed where there is a key.

    It needs root.
    """
    archive = build_platforms_archive(lambda text: print(text, file=sys.stderr))
    target = directory / f"fairlead-{version}-image.tar"
    if signer is None:
        shutil.copyfile(archive, target)
    else:
        sign_image(archive, target, signer, made_of)


def sign_files(directory: Path, version: str, signer: Signer, made_of: Json) -> None:
    """Write the provenance of what is in the directory, and a signature beside each file."""
    subjects = [{"name": name, "digest": {"sha256": digest}}
                for name, digest in digests(directory).items()]  # fmt: skip
    statement = signer.envelope({**made_of, "subject": subjects})
    (directory / f"fairlead-{version}.intoto.json").write_bytes(statement)
    (directory / "fairlead.pub").write_bytes(signer.public)
    _write_sums(directory)
    for name in digests(directory):
        path = directory / name
        if name != "fairlead.pub":
            (directory / f"{name}.sig").write_text(signer.sign(path.read_bytes()))


def _write_sums(directory: Path) -> None:
    sums = "".join(f"{digest}  {name}\n" for name, digest in digests(directory).items())
    (directory / "SHA256SUMS").write_text(sums, encoding="utf-8")
    print(sums, end="")


def fit(version: str, root: Path = ROOT) -> str:
    """Return the notes of a version; Unfit where the checkout cannot become that release."""
    if run(["git", "status", "--porcelain"], root):
        raise Unfit("the checkout has changes that are not committed")
    return notes((root / "CHANGELOG.md").read_text(encoding="utf-8"), version)


def release(
    directory: Path, signer: Signer | None = None, *, has_image: bool = False,
    version: str = __version__,
) -> None:  # fmt: skip
    """Make all files of a release; Unfit."""
    text = fit(version)
    epoch = run(["git", "log", "-1", "--format=%ct"]).strip()
    locks = {f"requirements/{name}": digest for name, digest in digests(LOCK.parent).items()}
    made_of = provenance(run(["git", "rev-parse", "HEAD"]).strip(), locks)
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    first = build(directory, epoch)
    with TemporaryDirectory() as again:
        second = build(Path(again), epoch)
    if first != second:
        raise Unfit(f"two builds of one commit differ: {first} and {second}")
    [wheel] = directory.glob("*.whl")
    describe(wheel, directory / f"fairlead-{version}.cdx.json")
    (directory / "NOTES.md").write_text(text, encoding="utf-8")
    if has_image:
        add_image(directory, version, signer, made_of)
    if signer is None:
        _write_sums(directory)
        print("not signed: make release KEY=FILE signs", file=sys.stderr)
    else:
        sign_files(directory, version, signer, made_of)


def main() -> int:
    """Make a release of the commit that is checked out."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--directory", type=Path, default=ROOT / "dist")
    parser.add_argument("--key", type=Path, help="private key that signs, in PEM")
    parser.add_argument("--image", action="store_true", help="build the image, too (needs root)")
    parser.add_argument("--check", action="store_true", help="see what is missing, build nothing")
    given = parser.parse_args()
    try:
        signer = None if given.key is None else Signer(given.key)
        if given.check:
            fit(__version__)
            return 0
        release(given.directory, signer, has_image=given.image)
    except (Unfit, BadKey, OSError) as error:
        print(f"no release: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
