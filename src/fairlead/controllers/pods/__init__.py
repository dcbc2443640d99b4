"""The writes of a job and the pods made from its template.

Begin with `job_writer.py`. Other rooms stand on it, and it on none of them.
"""
