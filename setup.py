"""Builds the two compiled modules; everything else about the package is in setup.cfg."""

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext


class BuildBesideTheModules(build_ext):
    """Puts the compiled modules into the checkout as well, whatever is built.

    From the checkout's folder Python imports headrace from there, even if another one is installed. `inplace` in setup.cfg
    would say the same, but a wheel's build, which is what `pip install .` makes, switches it off.
    """

    def run(self) -> None:
        """Build, then copy."""
        super().run()
        self.copy_extensions_to_source()


setup(
    cmdclass={"build_ext": BuildBesideTheModules},
    ext_modules=cythonize(
        [
            Extension(
                f"headrace.connectors.kafka.format.{name}",
                [f"headrace/connectors/kafka/format/{name}.py"],
                extra_compile_args=["-O3"],
            )
            for name in ("decode", "encode")
        ],
        compiler_directives={"language_level": "3"},
    ),
)
