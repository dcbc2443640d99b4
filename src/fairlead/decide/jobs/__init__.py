"""The life of a job, decided: from its objects to what is to be written, made or deleted next.

`lifecycle.decide_job` is the way in. `view` is what it sees, `pods` the counts kept per gang,
`judge` the causes of failures, `members` the pods it makes, `admission` the gate before the queue.
"""
