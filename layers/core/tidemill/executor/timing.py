"""The times of an executor, in one value: a test passes its own, and the product uses the defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Times of one execution, in seconds.

    Attributes:
        step_timeout_sec: Timeout of the operations of one step.
        step_wait_sec: Longest time between two steps, and between two claims without tasks.
        executor_slot_timeout_sec: Timeout of one operation on the executor slots.
        successor_timeout_sec: Time to wait for the launch of a successor. The first call also creates its client.
        answer_reserve_sec: Time of an invocation that is reserved for its answer.
        report_reserve_sec: Time of an invocation that is reserved for its report.
        final_flush_sec: Time for which a stopping worker tries to write its last outcomes. It is less than a
            supervisor's grace period.
        cleanup_wait_sec: Time to wait at the end for interrupted functions: coroutines clean up first.

        slot_wait_sec: Time for which a claimed task waits for a slot before other executors are offered the task.
        process_retry_sec: Time for which no process is started after a start failed.
        shortest_postpone_sec, longest_postpone_sec: Delay of a task whose process could not be started.
        recovery_interval_sec: Time between two searches for unconfirmed claims and two tries of failed releases.

        flush_sec: Time after which an outcome is written, at the latest.
        first_flush_pause_sec, longest_flush_pause_sec: Time between two flushes after failures. It doubles.
        cancellation_poll_sec: Time between two reads of cancellation requests.

        first_claim_pause_sec, longest_claim_pause_sec: Time between two claims in vain. It doubles.
        linger_poll_sec: Time between two claims while lingering.
        linger_after_work_sec: Time for which an executor lingers after its last task: tasks often arrive in groups.
        linger_after_launch_sec: Time for which a launched executor lingers. It exceeds the wake debounce, or tasks
            enqueued in between would wait.

        full_look_interval_sec: Time between two scans from the head. They find higher priorities, and tasks that
            became pending behind the position of the scan.
        full_look_cost_ratio: Full looks take at most the reciprocal of this as their share of the time.
        cheap_full_look_sec: A full look that takes less is always taken if a task is expected before the position.
        dry_lanes_pause_sec: Time for which lanes without due tasks are not scanned again.
        draw_sec: Time for which one draw rounds fractions of a slot.

        prefetch_sec: Work that a claim of short tasks prefetches, beyond the duration of the next claim.
        rate_window_sec: Shortest time over which a rate is measured, because tasks that start together end together.
    """

    step_timeout_sec: float = 10.0
    step_wait_sec: float = 0.5
    executor_slot_timeout_sec: float = 5.0
    successor_timeout_sec: float = 2.0
    answer_reserve_sec: float = 0.5
    report_reserve_sec: float = 2.0
    final_flush_sec: float = 20.0
    cleanup_wait_sec: float = 1.5

    slot_wait_sec: float = 1.0
    process_retry_sec: float = 10.0
    shortest_postpone_sec: float = 15.0
    longest_postpone_sec: float = 60.0
    recovery_interval_sec: float = 10.0

    flush_sec: float = 0.2
    first_flush_pause_sec: float = 0.1
    longest_flush_pause_sec: float = 2.0
    cancellation_poll_sec: float = 1.0

    first_claim_pause_sec: float = 0.02
    longest_claim_pause_sec: float = 0.5
    linger_poll_sec: float = 0.25
    linger_after_work_sec: float = 2.0
    linger_after_launch_sec: float = 1.5

    full_look_interval_sec: float = 1.0
    full_look_cost_ratio: float = 30.0
    cheap_full_look_sec: float = 0.005
    dry_lanes_pause_sec: float = 0.5
    draw_sec: float = 1.0

    prefetch_sec: float = 0.03
    rate_window_sec: float = 0.04


TIMING: Final = Timing()
"""The times of the product."""
