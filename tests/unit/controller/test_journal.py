"""The journal: bounded, kept in the fields of a hash, and read by versions that know more or less than the writer."""

from __future__ import annotations

import json

import pytest

from apparate.adaptation.policy import Decision, Observed, Reason
from apparate.contract.pause import Pause
from apparate.plan import Plan
from apparate_controller.journal import LONGEST, Journal, Noted

SEEN = Observed(samples=600, loss=0.004, loss_upper=0.009, saving=0.3, exit_rate=0.5)


def tuned(revision: int) -> Decision:
    return Decision(Reason.THRESHOLDS_TUNED, f"revision {revision}", Plan(revision), SEEN)


class Hash:
    """What Redis has of one journal."""

    def __init__(self) -> None:
        self.fields: dict[str, str] = {}

    def store(self, journal: Journal, *, everything: bool = False) -> tuple[int, int]:
        """(fields set, fields removed)."""
        fresh, gone = journal.changes(everything=everything)
        self.fields |= fresh
        for name in gone:
            self.fields.pop(name, None)
        journal.settled(fresh, gone)
        return len(fresh), len(gone)

    def restored(self) -> Journal:
        journal = Journal()
        journal.restore(self.fields)
        return journal


def reasons(journal: Journal) -> list[str]:
    return [one.reason for one in journal.newest_first()]


def test_decisions_that_change_no_plan_are_noted_once_with_their_count():
    journal = Journal()
    for _ in range(3):
        journal.note(Decision(Reason.UNCHANGED, "nothing better"))
    assert [(one.reason, one.times) for one in journal.newest_first()] == [("Unchanged", 3)]


def test_what_people_asked_for_is_noted_each_time():
    journal = Journal()
    for who in ("alice", "bob"):
        journal.note(Decision(Reason.PAUSED_BY_HAND, "stays"), by=who)
    assert [(one.by, one.times) for one in journal.newest_first()] == [("bob", 1), ("alice", 1)]


def test_another_process_has_the_same_decisions_and_counts_on():
    kept, journal = Hash(), Journal()
    journal.note(tuned(2))
    journal.note(Decision(Reason.UNCHANGED, "nothing better"))
    kept.store(journal)
    again = kept.restored()
    assert again.newest_first() == journal.newest_first()
    again.note(Decision(Reason.UNCHANGED, "nothing better"))
    assert [(one.reason, one.times) for one in again.newest_first()] == [("Unchanged", 2), ("ThresholdsTuned", 1)]


def test_the_journal_and_what_is_kept_of_it_are_bounded():
    kept, journal = Hash(), Journal(kept=5)
    for revision in range(1, 50):
        journal.note(Decision(Reason.THRESHOLDS_TUNED, "x" * 10_000, Plan(revision)))
        kept.store(journal)
    assert len(journal.newest_first()) == len(kept.fields) == 5
    assert all(len(text) < LONGEST + 1000 for text in kept.fields.values())


def test_more_than_is_kept_now_is_taken_away_when_it_is_read():
    kept, journal = Hash(), Journal(kept=150)
    for revision in range(1, 151):
        journal.note(tuned(revision))
    kept.store(journal)
    again = kept.restored()
    assert kept.store(again) == (0, 50)
    assert [one.revision for one in again.newest_first()][::99] == [150, 51]


def test_only_what_changed_is_stored_and_everything_when_it_may_be_lost():
    kept, journal = Hash(), Journal()
    for revision in range(1, 11):
        journal.note(tuned(revision))
    assert (kept.store(journal), kept.store(journal)) == ((10, 0), (0, 0))
    journal.note(tuned(11))
    assert kept.store(journal) == (1, 0)
    kept.fields.clear()
    assert kept.store(journal, everything=True) == (11, 0)


def test_what_was_noted_before_anything_could_be_read_comes_after_it():
    kept, old, journal = Hash(), Journal(), Journal()
    old.note(tuned(7))
    kept.store(old)
    journal.note(Decision(Reason.PAUSED_BY_HAND, "stays"), by="alice")
    journal.restore(kept.fields)
    journal.restore({})
    assert reasons(journal) == ["PausedByHand", "ThresholdsTuned"]


def test_fields_of_other_versions_and_damaged_ones_are_tolerated():
    later = {"at": "t", "reason": "ReasonOfALaterVersion", "message": "m", "weight": 3, "observed": {"colour": 1}}
    journal = Journal()
    journal.restore(
        {
            "batches": "17",
            "worker:w": "{}",
            "decision:1": json.dumps({"at": "t", "reason": "Started"}),
            "decision:2": json.dumps(later),
            "decision:3": "{",
            "decision:4": "[]",
            "decision:5": json.dumps({"at": "t", "reason": "Started", "times": "many"}),
            "decision:x": json.dumps(later),
            "pause": "yes",
        }
    )
    assert reasons(journal) == ["ReasonOfALaterVersion", "Started"]
    assert (journal.pause, journal.newest_first()[1].observed) == (None, Observed())
    _, gone = journal.changes()
    assert sorted(gone) == ["decision:3", "decision:4", "decision:5", "decision:x", "pause"]


def test_a_stored_decision_reads_back_as_it_was():
    one = Noted("2026-01-01T00:00:00Z", "RolledBackByHand", "revision 2 again", 9, SEEN, 1, "alice")
    assert Noted.load(one.text) == one


@pytest.mark.parametrize(
    ("known", "said", "held", "new"),
    [
        (None, Pause(), False, False),
        (None, Pause(True, document=True), True, True),
        (Pause(True, "t", "alice", document=False), Pause(), True, False),
        (Pause(False, "t", "alice", document=True), Pause(True, document=True), False, False),
        (Pause(True, "t", "alice", document=True), Pause(False), False, True),
        (Pause(False, "t", "alice", document=False), Pause(True, document=True), True, True),
    ],
)
def test_a_pause_asked_for_by_hand_holds_until_the_document_says_something_else(known, said, held, new):
    journal = Journal()
    journal.pause = known
    pause, changed = journal.hold(said)
    assert (pause.paused, changed, bool(pause.since)) == (held, new, True)


def test_a_pause_is_kept_with_since_when_and_by_whom():
    kept, journal = Hash(), Journal()
    journal.pause = Pause(True, "2026-01-01T00:00:00Z", "alice", document=False)
    kept.store(journal)
    assert kept.restored().pause == journal.pause
