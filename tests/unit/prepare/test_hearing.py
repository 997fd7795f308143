"""What it costs a pass to hear a ramp, measured with the code that serves."""

from contextlib import closing

import pytest
import torch

from apparate_worker.errors import InferenceFailed
from apparate_worker.prepare.hearing import Hearing
from support.models import X, a_prepared_model, items


def hearing(hook):
    prepared = a_prepared_model(hook=hook)
    return closing(Hearing(prepared.model, prepared.heads, (X,)))


@pytest.mark.parametrize("rows", [1, 5])
def test_each_ramp_has_its_time_and_the_segment_before_it_too(rows):
    ran = []
    with torch.inference_mode(), hearing(lambda k, value: ran.append((k, len(value)))) as one:
        for _ in range(3):
            segments, ramps = one.times_ms({"x": torch.from_numpy(items(rows))})
            assert len(segments) == len(ramps) == 3
            assert min(segments + ramps) > 0
    assert ran == [(k, rows) for k in range(4)] * 3  # whole passes: nobody leaves, nothing stands aside


def test_a_ramp_that_takes_long_is_told_from_the_others():
    prepared = a_prepared_model()
    answer = prepared.heads[1].answer
    slow = torch.randn(400, 400)

    class Slow:
        def answer(self, activation, mask):
            for _ in range(20):
                slow @ slow
            return answer(activation, mask)

    heads = [prepared.heads[0], Slow(), prepared.heads[2]]
    with torch.inference_mode(), closing(Hearing(prepared.model, heads, (X,))) as one:
        found = [one.times_ms({"x": torch.from_numpy(items(2))})[1] for _ in range(9)]
    first, second, third = (sorted(each)[4] for each in zip(*found, strict=True))
    assert second > first
    assert second > third


def test_what_the_model_raises_is_raised():
    def broken(k, value):
        raise ValueError("no such layer")

    with torch.inference_mode(), hearing(broken) as one, pytest.raises(InferenceFailed, match="no such layer"):
        one.times_ms({"x": torch.from_numpy(items(1))})
