"""Generates the code of `run.proto`: `python -m tests.helpers.generate_grpc`, by the grpcio-tools pinned in setup.cfg."""

from importlib.resources import files
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROTO = "headrace/runners/local/wire/run.proto"  # the path as it is imported: the code imports itself by it
MADE = ("run_pb2.py", "run_pb2.pyi", "run_pb2_grpc.py")


def generate(target: Path) -> None:
    """Write the modules below `target`, in the folders of the package. Raises RuntimeError for a file that protoc refuses."""
    from grpc_tools import protoc

    includes = [f"-I{ROOT}", f"-I{files('grpc_tools') / '_proto'}"]
    made = [f"--{kind}_out={target}" for kind in ("python", "pyi", "grpc_python")]
    if protoc.main(["protoc", *includes, *made, PROTO]) != 0:
        raise RuntimeError(f"{PROTO} cannot be compiled")


if __name__ == "__main__":
    generate(ROOT)
