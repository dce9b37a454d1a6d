"""The restrictions of the two splittable DoFns: the enumeration, and a reader with its splits."""
