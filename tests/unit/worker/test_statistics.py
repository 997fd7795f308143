"""What a model has done, in the words of the statistics extension."""

from dataclasses import dataclass, field

import numpy as np

from apparate_worker.statistics import Statistics


@dataclass
class One:
    index: int


@dataclass
class Done:
    """A pass of requests with so many items each."""

    requests: tuple[int, ...]
    started_at: float = 100.5
    input_s: float = 0.25
    service_s: float = 1.0
    items: list[One] = field(init=False)
    queued_s: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.items = [One(index) for count in self.requests for index in range(count)]
        self.queued_s = np.array([0.5 + item.index for item in self.items])


def told(*passes):
    statistics = Statistics()
    for one in passes:
        statistics.passed(one)
    return statistics.told("m", "1")


def test_items_passes_and_requests_are_counted_apart():
    found = told(Done((3, 1)), Done((1,)))
    assert (found["inference_count"], found["execution_count"], found["last_inference"]) == (5, 2, 100_500)
    stats = found["inference_stats"]
    assert stats["queue"] == {"count": 3, "ns": 1_500_000_000}
    assert stats["compute_input"] == {"count": 3, "ns": 750_000_000}
    assert stats["compute_infer"] == {"count": 3, "ns": 2_250_000_000}


def test_passes_are_told_apart_by_their_size():
    found = told(Done((3, 1)), Done((4,)), Done((1,)))["batch_stats"]
    assert [(one["batch_size"], one["compute_infer"]["count"]) for one in found] == [(1, 1), (4, 2)]
    assert found[1]["compute_infer"]["ns"] == 1_500_000_000


def test_a_request_whose_items_went_in_two_passes_counts_once():
    rest = Done((2,))
    rest.items = [One(3), One(4)]
    assert told(Done((3,)), rest)["inference_stats"]["queue"]["count"] == 1


def test_answers_and_failures_have_their_time():
    statistics = Statistics()
    statistics.answered(0.5)
    statistics.answered(0.25)
    statistics.given_again(0.25)
    statistics.failed(2.0)
    found = statistics.told("m", "1")["inference_stats"]
    assert found["success"] == {"count": 3, "ns": 1_000_000_000}
    assert found["cache_hit"] == {"count": 1, "ns": 250_000_000}
    assert found["fail"] == {"count": 1, "ns": 2_000_000_000}
