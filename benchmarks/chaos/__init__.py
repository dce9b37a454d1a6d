"""Chaos on real servers: jobs run while brokers, networks, settings, databases and the jobs themselves are disturbed.

    python -m benchmarks.chaos.run --help

`network.py` is the proxy between everyone, `testbed.py` the servers, `databases.py` a table to write to, `faults/` what is
done to them (a module for each family), `subject.py` the job, `oracle.py` and `load.py` who counts, `trial.py` one fault from
its beginning to the result, `run.py` the schedule, `report.py` the table and the plot.
"""
