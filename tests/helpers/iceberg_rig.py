"""What the tests of Iceberg tables share: a catalog in a folder, and a reader of the table's own metadata files."""

from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

TABLE = "shop.orders"


def catalog_of(folder: str) -> dict[str, str]:
    return {"name": "test", "type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}


def iceberg_table(folder: str) -> Table:
    return load_catalog(**catalog_of(folder)).load_table(TABLE)


def iceberg_paths(folder: str) -> list[str]:
    """The files of the current snapshot. One that was added twice comes twice."""
    return [task.file.file_path.removeprefix("file://") for task in iceberg_table(folder).scan().plan_files()]


def iceberg_values(folder: str) -> list[str]:
    return sorted(iceberg_table(folder).scan().to_arrow()["value"].to_pylist())
