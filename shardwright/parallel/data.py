"""Data parallelism, replicated: gradients summed over the data ranks in buckets, while backward still runs.

torch's DistributedDataParallel does this too, and three of its habits do not fit here. It regroups its buckets after
the first step, by the order in which gradients happened to become ready; with three or more ranks the order of the
additions inside a ring depends on the place in the bucket, so a resumed run would not equal an uninterrupted one bit
for bit (`docs/log.md` has the measurement). It averages, where a loss weighted by tokens wants a sum. And it wraps the
module, which changes parameter names. What remains is small: torch's own all-reduce, called at the right moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn

from shardwright.parallel.shards import like, local

BUCKET_BYTES = 8 * 2**20
"""Large enough that latency does not matter, small enough that the first leaves early."""


@dataclass
class Bucket:
    """Gradients that travel together: each parameter's `.grad` is a view into `flat`."""

    parameters: list[nn.Parameter]
    flat: Tensor
    waiting: int = 0
    """Gradients of this step that are not ready yet."""
    reduced: Tensor | None = None
    """What is being summed: `flat` itself, or its fp32 copy."""
    work: dist.Work | None = field(default=None, repr=False)


class GradientSync:
    """Sums gradients over a process group: bucketed, overlapped with backward, in a fixed order.

    Sums are taken in fp32 whatever type the gradients have. Over one rank there is nothing to do, and no bucket.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], group: dist.ProcessGroup | None, bucket_bytes: int = BUCKET_BYTES
    ) -> None:
        self.group = group
        # Backward reaches the last parameters first, so buckets are filled from the end.
        wanted = [parameter for parameter in parameters if parameter.requires_grad]
        self.parameters = wanted
        self.buckets = [] if group is None else [_bucket(part) for part in _grouped(reversed(wanted), bucket_bytes)]
        self._next = 0
        self._armed = False
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(lambda _, number=number: self._ready(number))
            for number, bucket in enumerate(self.buckets)
            for parameter in bucket.parameters
        ]

    @contextmanager
    def last_backward(self, last: bool = True) -> Iterator[None]:
        """Around a backward pass: only the last of a step's microbatches sends its gradients."""
        self._armed = last and self.group is not None
        if self._armed:
            self._next = 0
            for bucket in self.buckets:
                bucket.waiting = len(bucket.parameters)
        yield
        if self._armed:
            self._finish()

    def sum_now(self) -> None:
        """Sum all gradients at once: for schedules whose weight gradients pass no hook."""
        for bucket in self.buckets:
            self._start(bucket)
        self._finish()

    def zero(self) -> None:
        """Empty all gradients; those in buckets keep their memory."""
        for bucket in self.buckets:
            bucket.flat.zero_()
        if not self.buckets:
            for parameter in self.parameters:
                parameter.grad = None

    def close(self) -> None:
        """Let go of the process group.

        The hooks tie parameters, buckets and group into a ring that only the garbage collector would undo; gloo's
        threads would then outlive `destroy_process_group` and abort the process as it ends, one time in seven.
        """
        for hook in self._hooks:
            hook.remove()
        self._hooks, self.buckets, self.group = [], [], None

    def _ready(self, number: int) -> None:
        if not self._armed:
            return
        self.buckets[number].waiting -= 1
        # Collectives must start in the same order on every rank: a bucket leaves after all before it have left.
        while self._next < len(self.buckets) and self.buckets[self._next].waiting == 0:
            self._start(self.buckets[self._next])
            self._next += 1

    def _start(self, bucket: Bucket) -> None:
        bucket.reduced = bucket.flat if bucket.flat.dtype is torch.float32 else bucket.flat.float()
        bucket.work = dist.all_reduce(bucket.reduced, group=self.group, async_op=True)

    def _finish(self) -> None:
        for bucket in self.buckets:
            if bucket.work is None or bucket.reduced is None:
                names = [tuple(parameter.shape) for parameter in bucket.parameters]
                raise RuntimeError(f"{bucket.waiting} parameters got no gradient in this step, among shapes {names}")
            bucket.work.wait()
            if bucket.reduced is not bucket.flat:
                bucket.flat.copy_(bucket.reduced)
            bucket.work = bucket.reduced = None
        self._armed = False


def _grouped(parameters: Iterable[nn.Parameter], limit: int) -> Iterator[list[nn.Parameter]]:
    """Consecutive parameters of one type, up to a number of bytes."""
    group: list[nn.Parameter] = []
    size = 0
    for parameter in parameters:
        nbytes = local(parameter).nbytes
        if group and (size + nbytes > limit or parameter.dtype != group[0].dtype):
            yield group
            group, size = [], 0
        group.append(parameter)
        size += nbytes
    if group:
        yield group


def _bucket(parameters: list[nn.Parameter]) -> Bucket:
    sizes = [local(parameter).numel() for parameter in parameters]
    flat = torch.zeros(sum(sizes), dtype=parameters[0].dtype, device=parameters[0].device)
    for parameter, part in zip(parameters, flat.split(sizes)):
        parameter.grad = like(part.view_as(local(parameter)), parameter)
    return Bucket(parameters, flat)
