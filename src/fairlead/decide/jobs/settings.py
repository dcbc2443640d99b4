"""Settings of the life of a job: `app/configuration` reads their file."""

from __future__ import annotations

from typing import Annotated

from fairlead.api.values.sections import DAY, HOUR, YEAR, Section, about, within


class JobsSettings(Section, frozen=True):
    """Life of a job: limits, and how long each kind of trouble may last."""

    infrastructure_limit_max: Annotated[
        int, within(0, 1_000_000, "Ceiling of restart.infrastructureLimit of all jobs.")
    ] = 1000
    node_lost_grace_seconds: Annotated[
        int, within(1, DAY, "A node that is not ready for longer counts as lost.")
    ] = 40
    bind_patience_seconds: Annotated[
        int,
        within(1, HOUR, "A pinned member that kube-scheduler refuses for longer releases its "
                        "node."),
    ] = 10  # fmt: skip
    native_patience_seconds: Annotated[
        int, within(1, DAY, "A native gang that is not bound for longer releases its place.")
    ] = 60
    held_back_patience_seconds: Annotated[
        int,
        within(1, HOUR, "Pods that a quota or a starting API server refuses are retried for so "
                        "long before the attempt ends."),
    ] = 30  # fmt: skip
    refusals_max: Annotated[
        int,
        within(1, 1000, "After so many attempts in a row whose place kube-scheduler or kubelets "
                        "refused a gang gives it back, and waits before each further one."),
    ] = 3  # fmt: skip
    refused_backoff_seconds_max: Annotated[
        int,
        within(1, DAY, "Longest wait between two attempts of a job whose pods a quota or a policy "
                       "refuses, or whose place is refused."),
    ] = 300  # fmt: skip
    backoff_hold_seconds: Annotated[
        int,
        within(0, DAY, "A gang that waits longer for its restart gives its nodes back "
                       "meanwhile."),
    ] = 60  # fmt: skip
    start_error_grace_seconds: Annotated[
        int,
        within(0, DAY, "A container that cannot be started (image, configuration) may recover for "
                       "so long."),
    ] = 60  # fmt: skip
    start_seconds_max: Annotated[
        int, within(1, 7 * DAY, "A member that has not started for longer ends the attempt.")
    ] = 1800
    checkpoint_wait_seconds: Annotated[
        int,
        within(0, DAY, "A gang that is preempted and reports checkpoints may take so long to save "
                       "one more."),
    ] = 120  # fmt: skip
    grace_period_seconds_max: Annotated[
        int,
        within(1, DAY, "A pod that gives way, is drained or has reached its time limit has at most "
                       "so long to end, whatever its terminationGracePeriodSeconds is. Pods of "
                       "other tools that give way and intruders of teams' nodes, too."),
    ] = 300  # fmt: skip
    maintenance_drain_seconds: Annotated[
        int,
        within(0, DAY, "A gang leaves a node so long before the maintenance that its cloud has "
                       "announced."),
    ] = 300  # fmt: skip
    straggler_percent: Annotated[
        int,
        within(0, 10_000, "A member is reported as slow whose own work in a step is so many "
                          "percent above the median of its role; 0: none is."),
    ] = 20  # fmt: skip
    straggler_deviations: Annotated[
        int,
        within(0, 1_000, "And so many standard deviations, by the median of the distances from "
                         "that median."),
    ] = 6  # fmt: skip
    straggler_steps_min: Annotated[int, within(10, 1_000_000, "And over so many steps.")] = 50
    straggler_seconds_min: Annotated[int, within(0, DAY, "And for so long.")] = 300
    stragglers_suspect: Annotated[
        bool,
        about("Nodes of slow members are suspects: jobs of several nodes take them last, and they "
              "are tested as soon as they are idle."),
    ] = False  # fmt: skip
    keep_finished_pods_seconds: Annotated[
        int, within(0, YEAR, "Pods of jobs that have ended are kept for so long.")
    ] = 3600
    keep_finished_seconds: Annotated[
        int,
        within(0, 10 * YEAR, "Jobs that have ended are deleted after so long, unless they say "
                             "ttlSecondsAfterFinished or have an owner. History and logs stay; "
                             "where the history is in memory only, jobs stay, too."),
    ] = DAY  # fmt: skip
    keep_finished_jobs_max: Annotated[
        int,
        within(1, 1_000_000, "Of a namespace's other jobs that have ended so many stay, the "
                             "latest ones."),
    ] = 2_000  # fmt: skip
