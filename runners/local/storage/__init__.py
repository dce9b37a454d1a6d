"""Where a run keeps its small files: a folder of this machine under a lock, or a log of objects in a store."""
