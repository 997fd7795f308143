from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from apparate_controller.positions import MAX_EPOCHS, Positions, Sighting


def observe(positions: Positions, *seqs: int, worker: str = "w", epoch: int = 1) -> list[Sighting]:
    return [positions.observe(worker, epoch, seq) for seq in seqs]


def test_numbers_in_a_row_are_fresh_and_lose_nothing():
    assert observe(Positions(), 0, 1, 2) == [Sighting(True)] * 3


def test_a_repeat_is_not_fresh():
    assert observe(Positions(), 0, 1, 1, 0)[2:] == [Sighting(False), Sighting(False)]


def test_a_skipped_number_is_declared_lost():
    assert observe(Positions(), 0, 3)[1] == Sighting(True, lost=2)


def test_numbers_before_the_first_one_seen_are_declared_lost():
    assert observe(Positions(), 5) == [Sighting(True, lost=5)]


def test_a_late_batch_is_fresh_once_and_takes_its_loss_back():
    assert observe(Positions(), 0, 4, 2, 2)[2:] == [Sighting(True, lost=-1), Sighting(False)]


def test_a_restarted_worker_begins_anew():
    positions = Positions()
    observe(positions, 0, 1, 2)
    assert positions.observe("w", 2, 0) == Sighting(True)


def test_the_predecessor_of_a_restarted_worker_may_still_report():
    positions = Positions()
    observe(positions, 0)
    observe(positions, 0, epoch=2)
    assert positions.observe("w", 1, 1) == Sighting(True)


def test_an_epoch_before_those_remembered_counts_as_a_repeat():
    positions = Positions()
    for epoch in range(1, MAX_EPOCHS + 2):
        observe(positions, 0, epoch=epoch)
    assert positions.observe("w", 1, 1) == Sighting(False)


def test_only_so_many_workers_are_remembered():
    positions = Positions(max_workers=3)
    for worker in range(100):
        positions.observe(f"w{worker}", 1, 0)
    assert len(positions) == 3


def test_forgotten_workers_are_told_so_that_their_stored_positions_go_too():
    positions = Positions(max_workers=1)
    observe(positions, 0, worker="a")
    observe(positions, 0, worker="b")
    changed, forgotten = positions.changes()
    assert (set(changed), forgotten) == ({"b"}, {"a"})


def test_only_changed_workers_are_stored_again():
    positions = Positions()
    observe(positions, 0, worker="a")
    positions.settled(*positions.changes())
    observe(positions, 0, worker="b")
    assert set(positions.changes()[0]) == {"b"}


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 2), st.integers(0, 30)), max_size=80))
def test_every_batch_counts_once_and_what_did_not_come_is_declared_lost(arrivals):
    positions, fresh, lost = Positions(), 0, 0
    for worker, epoch, seq in arrivals:
        seen = positions.observe(worker, epoch, seq)
        fresh, lost = fresh + seen.fresh, lost + seen.lost
    produced = {key: max(s for w, e, s in arrivals if (w, e) == key) + 1 for key in {(w, e) for w, e, _ in arrivals}}
    assert (fresh, fresh + lost) == (len(set(arrivals)), sum(produced.values()))


@given(st.lists(st.integers(0, 40), max_size=40), st.lists(st.integers(0, 40), max_size=20))
def test_stored_and_loaded_positions_go_on_as_if_nothing_had_happened(before, after):
    kept = Positions()
    observe(kept, *before)
    loaded = Positions.load(kept.dump())
    assert observe(loaded, *after) == observe(kept, *after)
