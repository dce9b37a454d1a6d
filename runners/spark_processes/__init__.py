"""Python and Java processes that Spark starts. Imports nothing, as each of them imports this package first."""
