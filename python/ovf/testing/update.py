"""The end of a step: gradient buckets are reduced, clipped and applied."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ovf.testing import values
from ovf.testing.mlp import FP16_LARGE
from ovf.testing.modules import WEIGHT_SCALE, Modules
from ovf.testing.rank import GRAD_SCALE, Compute, Rank, is_bad
from ovf.testing.values import Scalar, TensorStat

if TYPE_CHECKING:
    from ovf.testing.channel import Channel
    from ovf.testing.layout import Axis
    from ovf.testing.world import Program


class Update:
    """Reduces, clips and applies the gradients of one rank."""

    def __init__(self, rank: Rank, modules: Modules, channel: Channel) -> None:
        """Take what the rank's other parts share.

        Args:
            rank: the rank.
            modules: its modules.
            channel: its way to other ranks.
        """
        self.at = rank
        self.modules = modules
        self.channel = channel

    def run(self) -> Program:
        """Reduce, clip and apply the gradients.

        Yields:
            What this rank waits for.
        """
        buckets: list[tuple[TensorStat, list[str]]] = []
        for layer, axis, modules in self.modules.buckets():
            bucket = yield from self._reduce_bucket(layer, axis, modules)
            buckets.append((bucket, modules))
        coefficient = yield from self._clip_coefficient([bucket for bucket, _ in buckets])
        clipped: dict[str, TensorStat] = {}
        for bucket, modules in buckets:
            if coefficient.max == 0.0 and not is_bad(bucket):
                out = values.constant(self.at.dtype, bucket.shape, 0.0)
            else:
                out = self.at.grad(bucket.shape, bucket, coefficient)
            self.at.record.call("Tensor.mul_", "clip", [bucket, coefficient], [out])
            clipped.update(dict.fromkeys(modules, out))
        for module, weights in self.modules.weights.items():
            for name, weight in weights.items():
                self._update_weight(module, name, weight, clipped[module])

    def _reduce_bucket(self, layer: int | None, axis: Axis, modules: list[str]) -> Compute:
        grads = [grad for module in modules for grad in self.modules.grads[module].values()]
        size = sum(math.prod(grad.shape) for grad in grads)
        fault = None
        if axis == "dp" and layer is not None:
            fault = self.at.fault("dp_all_reduce", 0, layer)
        scale = FP16_LARGE if fault else GRAD_SCALE
        bucket = self.at.draw((size,), *grads, scale=scale)._replace(requires_grad=False)
        replicas = len(self.at.training.layout.group(axis, self.at.rank).ranks)
        if replicas == 1:
            return bucket
        summed = yield from self.channel.all_reduce(bucket, axis, "dp_reduce", fault, scale)
        mean = self.at.grad(summed.shape)._replace(requires_grad=False)
        if is_bad(summed):
            only_inf = summed.max == values.INF and not values.is_non_finite(summed.min)
            mean = values.overflown(mean) if only_inf else summed
        self.at.record.call("Tensor.div_", "dp_mean", [summed, Scalar("int", replicas)], [mean])
        return mean

    def _clip_coefficient(self, buckets: list[TensorStat]) -> Compute:
        """Compute what gradients are scaled by: the whole step's norm goes through one sum."""
        record = self.at.record

        def scalar(value: float) -> TensorStat:
            return values.constant("torch.float32", (), value)

        norms = []
        for bucket in buckets:
            value = 1.0 + int(self.at.rng.random() * 64) / 64
            if is_bad(bucket):
                only_inf = bucket.max == values.INF and not values.is_non_finite(bucket.min)
                value = math.inf if only_inf else math.nan
            norms.append(scalar(value))
            record.call("Tensor.norm", "norm_of_grads", [bucket], [norms[-1]])
        squares = [float(norm.max) ** 2 for norm in norms]  # type: ignore[arg-type]
        total = scalar(sum(squares))
        shape = (len(norms),)
        listed = TensorStat("torch.float32", shape, max(squares), min(squares), 1.0, 1.0)
        if math.isnan(sum(squares)):
            listed = values.nan("torch.float32", shape, requires_grad=False)
        record.call("Tensor.sum", "norm_of_grads", [listed], [total])
        if self.at.training.layout.ranks > 1:
            total = yield from self.channel.all_reduce(total, "world", "norm_of_grads", scale=256.0)
        norm = scalar(math.sqrt(float(total.max)))  # type: ignore[arg-type]
        record.call("Tensor.sqrt", "norm_of_grads", [total], [norm])
        coefficient = scalar(1.0 / (float(norm.max) + 1e-6))  # type: ignore[arg-type]
        record.call("Tensor.reciprocal", "norm_of_grads", [norm], [coefficient])
        return coefficient

    def _update_weight(self, module: str, name: str, weight: TensorStat, bucket: TensorStat) -> None:
        grad = self.at.grad(weight.shape, bucket)._replace(requires_grad=False)
        layer = int(module.split(".")[1]) if module.startswith("layers.") else -1
        fault = self.at.fault("optimizer", 0, layer)
        if fault and module == self.modules.fc1(layer) and name == "weight":
            divided = values.nan(self.at.dtype, weight.shape, requires_grad=False)
            zero = values.constant(self.at.dtype, weight.shape, 0.0)
            if not is_bad(grad):
                self.at.show_next(fault, "Torch.div")
            self.at.record.call("Torch.div", "precondition", [grad, zero], [divided])
            grad = divided
        out = self.at.draw(weight.shape, weight, grad, scale=WEIGHT_SCALE)
        self.at.record.call("Tensor.add_", "update", [weight, grad], [out], {"alpha": Scalar("float", -0.01)})
