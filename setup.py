"""Builds the compiled modules, and what an index shows; everything else about the package is in setup.cfg."""

import hashlib
import os
import re
import shutil
from configparser import ConfigParser
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext

# What headrace.connectors.base.compiled looks for when a compiled module is imported, followed by the digest.
MARK = "headrace: compiled from source with sha256 "

COMPILED = (
    "headrace.connectors.kafka.format.decode",
    "headrace.connectors.kafka.format.encode",
    "headrace.connectors.formats.avro.decode",
    "headrace.connectors.formats.avro.encode",
    "headrace.connectors.postgresql.pgoutput",
)


CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def source_of(module: str) -> Path:
    """The file of a compiled module."""
    return Path(module.replace(".", "/") + ".py")


class BuildFromNothing(build):
    """Empties build/lib* first: what a wheel holds is what lies there, and so would be modules that were deleted since."""

    def run(self) -> None:
        """Remove, then build."""
        if Path(self.build_lib).is_dir():
            shutil.rmtree(self.build_lib)
            Path(self.build_lib).mkdir()
        super().run()


class BuildBesideTheModules(build_ext):
    """Puts the compiled modules into the checkout as well, whatever is built, and the digest of its source into each.

    From the checkout's folder Python imports headrace from there, even if another one is installed. `inplace` in setup.cfg
    would say the same, but a wheel's build, which is what `pip install .` makes, switches it off.
    """

    def finalize_options(self) -> None:
        """All at once, as far as there are cores, unless another process has said how many."""
        super().finalize_options()
        self.parallel = self.parallel or CORES

    def run(self) -> None:
        """Build, then copy."""
        super().run()
        self.copy_extensions_to_source()

    def build_extension(self, extension: Extension) -> None:
        """A file of C with the digest is compiled along; it is newer than what was built before if the source has changed."""
        name = extension.name.replace(".", "_")
        source = source_of(extension.name)
        digest = hashlib.sha256(source.read_bytes() + source.with_suffix(".pxd").read_bytes()).hexdigest()
        code = f'__attribute__((used)) const char headrace_source_of_{name}[] = "{MARK}{digest}";\n'
        file = Path(self.build_temp, f"source_of_{name}.c")
        if not file.exists() or file.read_text() != code:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(code)
        extension.sources = [*extension.sources, str(file)]
        super().build_extension(extension)


def repository() -> str | None:
    """The address of the repository, where a release is built: GitHub shows it there. Nothing else here knows it."""
    server, name = os.environ.get("GITHUB_SERVER_URL"), os.environ.get("GITHUB_REPOSITORY")
    return f"{server}/{name}" if server and name else None


def description(address: str | None) -> str:
    """README with links that an index can follow: into the repository, at this version's tag; without one they are text."""
    settings = ConfigParser()
    settings.read("setup.cfg")
    tag = f"v{settings['metadata']['version']}"

    def absolute(link: re.Match[str]) -> str:
        is_image, text, target = link["image"], link["text"], link["target"]
        if re.match(r"[a-z]+:|#", target):
            return link[0]
        if address is None:
            return "" if is_image else text
        return f"{is_image}[{text}]({address}/{'raw' if is_image else 'blob'}/{tag}/{target})"

    return re.sub(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)", absolute, Path("README.md").read_text())


def links(address: str | None) -> dict[str, str]:
    """What an index shows alongside the description."""
    files = {"Documentation": "docs/index.md", "Changelog": "CHANGELOG.md", "Security": "SECURITY.md"}
    pages = {name: f"{address}/blob/HEAD/{file}" for name, file in files.items()}
    return {} if address is None else {"Source": address, "Issues": f"{address}/issues", **pages}


setup(
    long_description=description(repository()),
    project_urls=links(repository()),
    cmdclass={"build": BuildFromNothing, "build_ext": BuildBesideTheModules},
    ext_modules=cythonize(
        # Without debug information, which a third of the compiler's time would go to.
        [Extension(module, [str(source_of(module))], extra_compile_args=["-O3", "-g0"]) for module in COMPILED],
        nthreads=CORES,
        compiler_directives={"language_level": "3"},
    ),
)
