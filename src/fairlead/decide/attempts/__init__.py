"""The attempts of a job: one machine, used by our jobs and by adopted groups.

`status` has the transitions of a job's status, `record` the record of an attempt and how it is
opened, started and closed, `end_reason` why attempts end, `backoff` how long to wait, `seats` the
members' places, `notes` the events. `decide/jobs` and `decide/adoption` hold what differs: who
makes the pods, and who judges them.
"""
