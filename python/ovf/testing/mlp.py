"""The two-layer perceptron of a transformer layer, where most faults strike."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ovf.testing import values
from ovf.testing.rank import GRAD_SCALE, Compute, Rank, is_bad
from ovf.testing.values import Scalar, TensorStat, Value

if TYPE_CHECKING:
    from ovf.testing.channel import Channel
    from ovf.testing.fault import Fault
    from ovf.testing.modules import Modules

# Above half of the largest fp16 number, 65504: two of these never fit into fp16 when summed.
FP16_LARGE = 65536.0


class Mlp:
    """Two linears around a gelu; with tensor parallelism each rank has a share of the width."""

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
        self._extra: dict[tuple[int, int], list[tuple[str, int, int]]] = {}

    def forward(self, hidden: TensorStat, batch: int, layer: int, saved: dict[str, int]) -> Compute:
        """Run the perceptron.

        Args:
            hidden: activations.
            batch: the micro-batch.
            layer: the layer within the stage.
            saved: call numbers for the backward.

        Returns:
            Activations of the same shape.
        """
        base = f"layers.{layer}.mlp"
        self.at.record.enter(f"{base}.MLP", "forward", batch)
        wide = self.modules.linear(hidden, f"{base}.fc1.Linear", batch, saved)
        active = self.activate(wide, batch, layer, saved)
        fault = self.at.fault("tp_all_reduce", batch, layer)
        scale = FP16_LARGE if fault else 4.0
        out = self.modules.linear(active, f"{base}.fc2.Linear", batch, saved, scale)
        out = yield from self.channel.tp_reduce(out, fault, scale)
        self.at.record.leave([hidden], [out])
        return out

    def activate(self, wide: TensorStat, batch: int, layer: int, saved: dict[str, int]) -> TensorStat:
        """Run gelu, then whatever goes wrong before the second linear.

        Args:
            wide: the output of the first linear.
            batch: the micro-batch.
            layer: the layer within the stage.
            saved: call numbers for the backward.

        Returns:
            What the second linear reads.
        """
        active = self.at.draw(wide.shape, wide)
        if not is_bad(active):
            active = active._replace(min=-0.1699)
        saved["gelu"] = self.at.record.call("Functional.gelu", "gelu", [wide], [active])
        fault = self.at.fault("forward", batch, layer)
        if fault:
            active = self._break(fault, active, batch, layer)
        fault = self.at.fault("corruption", batch, layer)
        if fault and not is_bad(active):
            self.at.show_next(fault, "Functional.linear")
            active = values.nan(active.dtype, active.shape)
        return active

    def _break(self, fault: Fault, active: TensorStat, batch: int, layer: int) -> TensorStat:
        """Run the ops of a compute fault: exp of 200, log of 0 or a division by 0."""
        record = self.at.record
        extra = self._extra.setdefault((batch, layer), [])

        def run(api: str, inputs: list[Value], out: TensorStat) -> TensorStat:
            if is_bad(active):
                out = values.nan(self.at.dtype, active.shape)
            elif is_bad(out):
                self.at.show_next(fault, api)
            extra.append((api, record.call(api, "gate", inputs, [out]), len(inputs)))
            return out

        def filled(value: float) -> TensorStat:
            return values.constant(self.at.dtype, active.shape, value, requires_grad=True)

        how = values.seeded(self.at.training.seed, fault).choice(("exp", "log", "div"))
        zero = run("Tensor.__mul__", [active, Scalar("float", 0.0)], filled(0.0))
        if how == "exp":
            large = run("Tensor.__add__", [zero, Scalar("float", 200.0)], filled(200.0))
            return run("Torch.exp", [large], filled(math.inf))
        if how == "log":
            return run("Torch.log", [zero], filled(-math.inf))
        return run("Torch.div", [active, zero], values.nan(self.at.dtype, active.shape))

    def backward(self, grad: TensorStat, batch: int, layer: int, saved: dict[str, int]) -> Compute:
        """Run the backward of `forward`.

        Args:
            grad: the gradient of the output.
            batch: the micro-batch.
            layer: the layer within the stage.
            saved: call numbers for the backward.

        Returns:
            The gradient of the input.
        """
        base = f"layers.{layer}.mlp"
        self.at.record.enter(f"{base}.MLP", "backward", batch)
        inner = self.modules.linear_backward(grad, f"{base}.fc2.Linear", batch, saved)
        inner = self.activate_backward(inner, batch, layer, saved)
        inner = self.modules.linear_backward(inner, f"{base}.fc1.Linear", batch, saved)
        inner = yield from self.channel.tp_reduce(inner, scale=GRAD_SCALE)
        self.at.record.leave([grad], [inner])
        return inner

    def activate_backward(self, grad: TensorStat, batch: int, layer: int, saved: dict[str, int]) -> TensorStat:
        """Run the backward of `activate`.

        Args:
            grad: the gradient of what the second linear read.
            batch: the micro-batch.
            layer: the layer within the stage.
            saved: call numbers for the backward.

        Returns:
            The gradient of the output of the first linear.
        """
        for api, number, inputs in reversed(self._extra.pop((batch, layer), [])):
            # Each extra op stood in a chain whose values were bad: so is its gradient.
            self.at.record.backward(api, number, [grad], [grad, *[None] * (inputs - 1)])
        out = self.at.grad(grad.shape, grad)
        fault = self.at.fault("backward", batch, layer)
        if fault and not is_bad(grad):
            out = values.nan(grad.dtype, grad.shape)
            name = f"Functional.gelu.{saved['gelu']}.backward"
            self.at.show_at(fault, name)
        self.at.record.backward("Functional.gelu", saved["gelu"], [grad], [out])
        return out
