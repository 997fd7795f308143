"""A worker and a controller's session in one loop over a recorded table, in virtual time: no model, no process."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from apparate.adaptation.exits import exit_ramps
from apparate.adaptation.guard import Guard, GuardState
from apparate.catalog import RampCatalog
from apparate.contract.resource import Spec
from apparate.feedback import FINAL, FeedbackBatch
from apparate_controller.session import ModelSession


@dataclass
class Outcome:
    """What was released: [N] exit (catalog index, -1 final) and whether it disagreed; and every plan published."""

    exits: np.ndarray
    wrong: np.ndarray
    plans: list = field(default_factory=list)
    decisions: list = field(default_factory=list)
    alarms: int = 0

    def worst_loss(self, answers: int = 1000) -> float:
        """Largest share of disagreements in any stretch of so many answers."""
        return float(np.convolve(self.wrong, np.ones(answers), "valid").max() / answers)

    def saving(self, catalog: RampCatalog, rows: slice = slice(None)) -> float:
        """Share of the plain pass's time saved, ramps' own time neglected."""
        depth = np.append(catalog.reach_ms[0], catalog.full_ms[0])[self.exits[rows]]
        return float(1 - depth.mean() / catalog.full_ms[0])


def run(spec: Spec, catalog: RampCatalog, err, top1, final, *, batch=2, delay=6, every_shadow=4) -> Outcome:
    """Serve the table once, in order, in passes of `batch`; a plan takes `delay` passes to arrive.

    Every `every_shadow`-th pass reports on all ramps, and every pass while no exit is open; 0: never.
    """
    session = ModelSession(catalog, spec)
    outcome = Outcome(np.full(len(err), FINAL), np.zeros(len(err), bool))
    started = session.start()
    plan = started.plan
    outcome.plans.append((0, plan))
    guard, coming = Guard(spec.budget.accuracy_loss), []
    state = guard.state
    for number, start in enumerate(range(0, len(err), batch)):
        while coming and coming[0][0] <= number:
            plan = coming.pop(0)[1]
            guard.new_plan()
            state = guard.state
        rows = slice(start, min(start + batch, len(err)))
        active = list(plan.active)
        if state is GuardState.OPEN:
            left = exit_ramps(err[rows][:, active], plan.thresholds)
            exits = np.append(active, FINAL)[left].astype(np.int32)
        else:
            exits = np.full(rows.stop - rows.start, FINAL, np.int32)
        shadow = every_shadow and (number % every_shadow == 0 or not plan.exits_open)
        ramps = tuple(range(catalog.ramps)) if shadow else plan.active
        feedback = FeedbackBatch(
            model="default/m/1",
            worker="w",
            epoch=1,
            seq=number,
            revision=plan.revision,
            padded_size=batch,
            ramps=ramps,
            shadow=tuple(r not in plan.active for r in ramps),
            errors=err[rows][:, list(ramps)],
            labels=top1[rows][:, list(ramps)],
            final_labels=final[rows],
            exits=exits,
            guarded=state is GuardState.LOSS_ABOVE_BUDGET and plan.exits_open,
            catalog=catalog.digest,
        )
        outcome.exits[rows], outcome.wrong[rows] = exits, feedback.released_wrong
        before = state
        state = guard.observe(feedback.released_wrong)
        outcome.alarms += state is GuardState.LOSS_ABOVE_BUDGET and before is not state
        decision = session.feed(feedback)
        if (search := session.take_search()) is not None:
            session.propose(search.run())
        if decision is not None:
            outcome.decisions.append((start, decision))
            if decision.plan is not None:
                coming.append((number + delay, decision.plan))
                outcome.plans.append((start, decision.plan))
    return outcome
