"""Texts that are embedded or classified: a row that reaches a text's end completes its vector, and samples
nothing."""

from scheduler_svc.core.flight import Flight
from scheduler_svc.core.plan import Outcome, StepResult
from scheduler_svc.core.state import SchedulerState
from scheduler_svc.core.step_builder import StepBuilder


def complete_with_next_row(step: StepBuilder) -> None:
    """Note that the row that is added next reaches the end of a text."""
    step.embedded.append(len(step.sequences))


def deliver(state: SchedulerState, flight: Flight, result: StepResult, outcome: Outcome) -> None:
    """End the sequences whose embeddings a result has, and add these to the outcome."""
    for row in flight.embedded:
        sequence = flight.sequences[row]
        if sequence.epoch == flight.epochs[row]:
            outcome.embedded.append((sequence.group, result.embeddings[row]))
            state.end(sequence)
