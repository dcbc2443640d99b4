"""The agent of one machine: readers with a root directory, pure judges, faults, a report.

`sources/` has a module for each kind of signal: a reader that takes what the kernel says, and a
function that judges it. `watch` folds what they say into the book of faults (`model/`), `readers`
runs the reads so that none can hold up another, `agent` is the loop. Nothing here is a client of
the API server, and nothing but `tuning/` changes the machine.
"""
