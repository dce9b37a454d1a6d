"""Builds the one compiled module; everything else about the package is in setup.cfg."""

from Cython.Build import cythonize
from setuptools import Extension, setup

setup(
    ext_modules=cythonize(
        [
            Extension(
                "headrace.connectors.kafka.records",
                ["connectors/kafka/records.py"],
                extra_compile_args=["-O3"],
            )
        ],
        compiler_directives={"language_level": "3"},
    )
)
