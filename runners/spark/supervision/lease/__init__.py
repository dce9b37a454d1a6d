"""Which of several hosts runs a job. Two modules in a package, because the rest of supervision does not need to know them."""
