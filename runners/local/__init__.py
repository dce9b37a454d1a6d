"""`headrace run` and `Pipeline.run`: a pipeline in processes of one machine, a coordinator without user code, and workers."""
