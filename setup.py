"""Build of the C kernel; everything else is in pyproject.toml.

The kernel is a plain shared library that Python loads with ctypes, so neither Python's headers nor
libpython are needed to build it. Without a C compiler the package installs all the same, and the
engine says at its first read from PostgreSQL what is missing.
"""

from __future__ import annotations

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

SOURCES = "rivet_dagster/engine/sources/postgres"


class BuildKernel(build_ext):
    """build_ext for a library without a PyInit function."""

    def get_libraries(self, ext: Extension) -> list[str]:
        return list(ext.libraries)

    def get_export_symbols(self, ext: Extension) -> list[str]:
        return list(ext.export_symbols)


setup(
    ext_modules=[
        Extension(
            "rivet_dagster.engine.sources.postgres._kernel",
            sources=[f"{SOURCES}/kernel.c", f"{SOURCES}/checksum.c", f"{SOURCES}/unique.c"],
            depends=[f"{SOURCES}/kernel.h", f"{SOURCES}/cells.h", f"{SOURCES}/numeric.h"],
            extra_compile_args=[
                "-O3",
                "-std=c11",
                "-fvisibility=hidden",
                "-Wall",
                "-Wextra",
                "-Werror",
            ],
            py_limited_api=True,
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildKernel},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
