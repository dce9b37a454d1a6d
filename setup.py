"""Builds the two compiled modules; everything else about the package is in setup.cfg."""

from Cython.Build import cythonize
from setuptools import Extension, setup

setup(
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
    )
)
