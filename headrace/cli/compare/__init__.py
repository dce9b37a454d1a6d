"""`headrace verify`: the comparison of a topic with what was made of it."""
