"""One model's adaptation: feedback in, decisions out. Synchronous, no I/O, no clock."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from apparate.adaptation import policy
from apparate.adaptation.exits import exit_ramps, replay
from apparate.adaptation.guard import LossMonitor
from apparate.adaptation.policy import Budget, Decision, Memory, Reason, Search
from apparate.adaptation.thresholds import Method
from apparate.catalog import RampCatalog
from apparate.contract.resource import Spec
from apparate.feedback import FeedbackBatch, FeedbackWindow
from apparate.plan import Plan, newer, newest, revision_after

DECISIONS_KEPT = 100  # for the HTTP API; the plans themselves are kept where they are published


@dataclass
class ModelSession:
    """The window and the plan of one model under one spec and one catalog; a new spec or catalog is a new session."""

    catalog: RampCatalog
    spec: Spec
    plan: Plan = field(default_factory=lambda: Plan(0))
    """The plan in force; revision 0 until `start`."""

    def __post_init__(self) -> None:
        asked = self.spec.budget
        self.budget = Budget(
            asked.accuracy_loss, asked.ramp_overhead, asked.confidence, self.spec.serving.checked_share
        )
        self.window = FeedbackWindow(self.spec.adaptation.window, self.catalog.ramps)
        self.decisions: deque[tuple[int, Decision]] = deque(maxlen=DECISIONS_KEPT)
        self.observed = policy.Observed()
        """What `observe` last saw."""
        self.paused = self.spec.adaptation.paused
        """Whether decisions stop; the window goes on."""
        self.foreign = 0
        """Records dropped because they speak of another catalog."""
        self._monitor = LossMonitor(self.budget.accuracy_loss)
        self._memory = Memory()
        self._seen_revision = self.plan.revision
        self._search: Search | None = None
        self._proposal: tuple[int, ...] | None = None
        self._checked_at = 0

    @property
    def adapts(self) -> bool:
        """Whether exits are meant to open: adaptation is neither paused nor forbidden."""
        return not (self.spec.adaptation.policy == "never" or self.paused)

    def start(self) -> Decision | None:
        """The first plan of this catalog; None when the plan in force is one."""
        if self.spec.adaptation.policy == "never":
            first, message = Plan(0, (), self.catalog.digest), "policy never: the plain model"
        else:
            first = policy.first_plan(self.catalog, self.budget)
            message = f"{len(first.ramps)} of {self.catalog.ramps} ramps report, none lets go yet"
            if not first.ramps:
                message = policy.none_fits(self.catalog, self.budget)
        if self._fits(self.plan) and bool(self.plan.ramps) == bool(first.ramps):
            return None
        return self._take(Decision(Reason.STARTED, message, first))

    def _fits(self, plan: Plan) -> bool:
        """Whether it is a plan of this catalog."""
        return plan.revision > 0 and self.catalog.has(plan)

    def take_up(self, plan: Plan) -> bool:
        """Go on from a plan that somebody else put in force; False, and nothing changes, when a new session has to.

        That is when it is of another catalog, or one has ramps and the other is the plain model.
        """
        if not self._fits(plan) or bool(plan.ramps) != bool(self.plan.ramps):
            return False
        self.plan = plan
        self._monitor.reset()
        self._proposal = None
        self._memory = replace(self._memory, eased=None)  # what was accepted is not what is in force
        return True

    def feed(self, batch: FeedbackBatch, *, more: bool = False) -> Decision | None:
        """Take one batch of feedback; a decision when one is due.

        more: more feedback is at hand, so that a decision waits for it, unless it answers an alarm. A decision's
        plan, if any, is in force from now on; the caller publishes it.
        """
        if not self.refill(batch):
            return None
        if batch.revision == self.plan.revision:
            self._monitor.observe(batch.released_wrong)
        if not self.adapts:
            return None
        alarm = self._monitor.alarm or (batch.guarded and not newer(self.plan.revision, batch.revision))
        if alarm or (not more and self._due()):
            return self._decide(alarm=alarm)
        return None

    def _due(self) -> bool:
        if self._proposal is not None or policy.due(self.window, self._memory, self.budget):
            return True
        if self.window.added - self._checked_at < policy.CHECK_EVERY:
            return False
        self._checked_at = self.window.added
        return policy.step_due(self.window, self.plan, self._memory, self.budget)

    def _decide(self, *, alarm: bool) -> Decision:
        self._checked_at = self.window.added
        probing = False
        if not alarm and policy.adjustment_due(self.window, self._memory):
            self._memory = replace(self._memory, adjusted_at=self.window.added)
            self._search = policy.search_for(self.window, self.catalog, self.budget)
            probing = self._search is None
        proposal = None
        if not alarm:
            proposal, self._proposal = self._proposal, None
        decision, self._memory = policy.decide(
            self.window,
            self.plan,
            self.catalog,
            self.budget,
            self._memory,
            alarm=alarm,
            proposal=proposal,
            probing=probing,
            method=Method(self.spec.adaptation.policy),
        )
        return self._take(decision)

    def take_search(self) -> Search | None:
        """A search for other ramps that is wanted, once; run it in another thread and `propose` what it finds."""
        search, self._search = self._search, None
        return search

    def propose(self, ramps: tuple[int, ...]) -> None:
        """Have the next decision consider this set of ramps."""
        self._proposal = ramps

    def refill(self, batch: FeedbackBatch) -> bool:
        """Take a batch into the window and decide nothing, as after a restart; False when it is of another catalog."""
        if batch.catalog and batch.catalog != self.catalog.digest:
            self.foreign += len(batch)
            return False
        self.window.add(batch)
        self._seen_revision = newest(self._seen_revision, batch.revision)
        return True

    def _take(self, decision: Decision) -> Decision:
        """Number the decision's plan above every revision that any worker has run, and put it in force."""
        if decision.plan is not None:
            revision = revision_after(self.plan.revision, self._seen_revision)
            decision = replace(decision, plan=replace(decision.plan, revision=revision))
            assert decision.plan is not None
            self.plan = decision.plan
            self._monitor.reset()
        self.decisions.append((self.window.added, decision))
        return decision

    def observe(self) -> policy.Observed:
        """What the window says of the plan in force now, whether decisions are taken or not.

        What was last seen stays while no record knows the ramps of a new plan.
        """
        records = self.window.over(self.plan.active) if self.plan.ramps else None
        if records is not None and len(records):
            self.observed = policy.observe(self.window, records, self.plan, self.catalog, self.budget)
        return self.observed

    def describe(self) -> dict[str, Any]:
        """Window, plan, ramps and last decisions as plain data, for the HTTP API."""
        self.observe()
        return {
            "window": {"records": len(self.window), "size": self.window.size, "added": self.window.added},
            "foreignRecords": self.foreign,
            "observed": {
                "samples": self.observed.samples,
                "loss": self.observed.loss,
                "lossUpper": self.observed.loss_upper,
                "saving": self.observed.saving,
                "exitRate": self.observed.exit_rate,
            },
            "plan": {
                "revision": self.plan.revision,
                "catalog": self.plan.catalog,
                "ramps": [
                    {"ramp": s.ramp, "layer": self.catalog.layers[s.ramp], "threshold": s.threshold}
                    for s in self.plan.ramps
                ],
            },
            "ramps": self._ramps(),
            "decisions": [
                {
                    "records": at,
                    "reason": decision.reason.value,
                    "message": decision.message,
                    "revision": decision.plan.revision if decision.plan else None,
                }
                for at, decision in reversed(self.decisions)
            ],
        }

    def _ramps(self) -> list[dict[str, Any]]:
        """What each active ramp does on the window under the plan in force: for people."""
        records = self.window.over(self.plan.active)
        if not len(records) or not self.plan.ramps:
            return []
        left_at = exit_ramps(records.errors, self.plan.thresholds)
        whole = replay(records, self.plan.thresholds, self.catalog, self.plan.active)
        full_ms = float(self.catalog.full_ms[self.catalog.rows(records.batch)].mean())
        answers_ms = self.catalog.exit_ms(self.plan.active)[self.catalog.rows(records.batch)].mean(axis=0)
        rows = []
        for j, setting in enumerate(self.plan.ramps):
            here = left_at == j
            right = float(records.agree[here, j].mean()) if here.any() else None
            rows.append(
                {
                    "ramp": setting.ramp,
                    "layer": self.catalog.layers[setting.ramp],
                    "threshold": setting.threshold,
                    "exitRate": whole.exit_rates[j],
                    "agreement": right,
                    "agreementIfAll": float(np.mean(records.agree[:, j])),
                    "savedMs": full_ms - float(answers_ms[j]),
                }
            )
        return rows
