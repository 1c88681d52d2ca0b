"""The modules of one rank that have parameters: linears and norms, forward and backward."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ovf.testing import values
from ovf.testing.rank import Rank, is_bad
from ovf.testing.values import Scalar, TensorStat

if TYPE_CHECKING:
    from ovf.testing.fault import Fault
    from ovf.testing.layout import Axis

WEIGHT_SCALE = 2.0**-3


class Modules:
    """The weights of one rank, what is computed with them, and their gradients.

    Weights are `[out, in]`; keys are the path and class of a module, such as `head.Linear`.

    Attributes:
        weights: parameters by module and name.
        grads: accumulated gradients, likewise.
    """

    def __init__(self, rank: Rank) -> None:
        """Take what the rank's other parts share.

        Args:
            rank: the rank.
        """
        self.at = rank
        self.weights: dict[str, dict[str, TensorStat]] = {}
        self.grads: dict[str, dict[str, TensorStat]] = {}
        self._shown_weight: set[Fault] = set()
        self._make_weights()

    def _make_weights(self) -> None:
        training, tp = self.at.training, self.at.training.layout.tp
        hidden, wide = training.hidden, 4 * training.hidden // tp
        if self.at.first:
            self._weight("embedding.tokens.Embedding", (training.vocabulary, hidden), bias=False)
            self._weight("embedding.patches.Linear", (hidden, 64))
        for layer in range(self.at.layers):
            base = f"layers.{layer}"
            self._norm_weight(f"{base}.input_norm.LayerNorm")
            self._weight(f"{base}.attention.qkv.Linear", (3 * hidden // tp, hidden))
            self._weight(f"{base}.attention.proj.Linear", (hidden, hidden // tp))
            self._norm_weight(f"{base}.mlp_norm.LayerNorm")
            if training.layout.ep > 1:
                experts = (training.layout.ep, hidden)
                self._weight(f"{base}.mlp.router.Linear", experts, bias=False)
                self._weight(f"{base}.mlp.expert.fc1.Linear", (4 * hidden, hidden))
                self._weight(f"{base}.mlp.expert.fc2.Linear", (hidden, 4 * hidden))
            else:
                self._weight(f"{base}.mlp.fc1.Linear", (wide, hidden))
                self._weight(f"{base}.mlp.fc2.Linear", (hidden, wide))
            if self.at.fault("weight", 0, layer):
                weights = self.weights[self.fc1(layer)]
                weights["weight"] = values.nan(self.at.dtype, weights["weight"].shape)
        if self.at.last:
            self._norm_weight("final_norm.LayerNorm")
            self._weight("head.Linear", (training.vocabulary, hidden), bias=False)

    def fc1(self, layer: int) -> str:
        """Give the name of the first linear of a layer's perceptron or expert.

        Args:
            layer: the layer within the stage.

        Returns:
            Its path and class.
        """
        expert = "expert." if self.at.training.layout.ep > 1 else ""
        return f"layers.{layer}.mlp.{expert}fc1.Linear"

    def _weight(self, module: str, shape: tuple[int, int], *, bias: bool = True) -> None:
        own = {"weight": values.draw(self.at.rng, self.at.dtype, shape, WEIGHT_SCALE)}
        if bias:
            own["bias"] = values.draw(self.at.rng, self.at.dtype, shape[:1], WEIGHT_SCALE)
        self.weights[module] = own

    def _norm_weight(self, module: str) -> None:
        shape = (self.at.training.hidden,)
        self.weights[module] = {
            "weight": values.constant(self.at.dtype, shape, 1.0, requires_grad=True),
            "bias": values.constant(self.at.dtype, shape, 0.0, requires_grad=True),
        }

    def norm(self, hidden: TensorStat, module: str, batch: int, saved: dict[str, int]) -> TensorStat:
        """Run a layer norm.

        Args:
            hidden: activations.
            module: path and class.
            batch: the micro-batch.
            saved: call numbers for the backward.

        Returns:
            Activations of the same shape.
        """
        weights = self.weights[module]
        self.at.record.enter(module, "forward", batch)
        out = self.at.draw(hidden.shape, hidden, *weights.values())
        saved[module] = self.at.record.call(
            "Functional.layer_norm",
            "norm",
            [
                hidden,
                [Scalar("int", self.at.training.hidden)],
                weights["weight"],
                weights["bias"],
                Scalar("float", 1e-05),
            ],
            [out],
        )
        self.at.record.leave([hidden], [out], weights)
        return out

    def linear(
        self,
        hidden: TensorStat,
        module: str,
        batch: int,
        saved: dict[str, int],
        scale: float = 4.0,
    ) -> TensorStat:
        """Run a linear.

        Args:
            hidden: activations, `[..., in]`.
            module: path and class.
            batch: the micro-batch.
            saved: call numbers for the backward.
            scale: a power of two above the elements of a finite output.

        Returns:
            Activations, `[..., out]`.
        """
        weights = self.weights[module]
        weight = weights["weight"]
        self.at.record.enter(module, "forward", batch)
        if is_bad(weight):
            self._show_weight(module)
        shape = (*hidden.shape[:-1], weight.shape[0])
        out = self.at.draw(shape, hidden, weight, scale=scale)
        saved[module] = self.at.record.call("Functional.linear", "linear", [hidden, weight, weights.get("bias")], [out])
        self.at.record.leave([hidden], [out], weights)
        return out

    def _show_weight(self, module: str) -> None:
        layer = int(module.split(".")[1])
        fault = self.at.fault("weight", 0, layer)
        if fault and fault not in self._shown_weight:
            self._shown_weight.add(fault)
            self.at.show_next(fault, "Functional.linear")

    def linear_backward(
        self,
        grad: TensorStat,
        module: str,
        batch: int,
        saved: dict[str, int],
        *,
        leaf: bool = False,
    ) -> TensorStat:
        """Run the backward of a linear.

        The API record shows the flattened gradient, as autograd's outermost node does; the
        gradient of the input is what the module record and the next op show.

        Args:
            grad: the gradient of the output.
            module: path and class.
            batch: the micro-batch.
            saved: call numbers for the backward.
            leaf: whether the input takes no gradient.

        Returns:
            The gradient of the input.
        """
        record = self.at.record
        weights = self.weights[module]
        weight = weights["weight"]
        record.enter(module, "backward", batch)
        flat = (math.prod(grad.shape[:-1]), grad.shape[-1])
        record.backward("Functional.linear", saved[module], [grad], [grad._replace(shape=flat)])
        self.accumulate(module, batch, {name: self.at.grad(own.shape, grad) for name, own in weights.items()})
        out = self.at.grad((*grad.shape[:-1], weight.shape[1]), grad, weight)
        record.leave([grad], [None if leaf else out])
        return out

    def norm_backward(self, grad: TensorStat, module: str, batch: int, saved: dict[str, int]) -> TensorStat:
        """Run the backward of a layer norm.

        Args:
            grad: the gradient of the output.
            module: path and class.
            batch: the micro-batch.
            saved: call numbers for the backward.

        Returns:
            The gradient of the input.
        """
        record = self.at.record
        record.enter(module, "backward", batch)
        out = self.at.grad(grad.shape, grad)
        own = {name: self.at.grad(weight.shape, grad) for name, weight in self.weights[module].items()}
        record.backward("Functional.layer_norm", saved[module], [grad], [out, *own.values()])
        self.accumulate(module, batch, own)
        record.leave([grad], [out])
        return out

    def accumulate(self, module: str, batch: int, grads: dict[str, TensorStat]) -> None:
        """Add to the gradients of a module's parameters, and record their sums.

        Args:
            module: path and class.
            batch: the micro-batch.
            grads: what to add, by parameter.
        """
        held = self.grads.get(module)
        if held is not None:
            grads = {name: self.at.grad(grad.shape, grad, held[name]) for name, grad in grads.items()}
        self.grads[module] = grads
        last = batch == self.at.training.micro_batches - 1
        if last or self.at.training.numbered_parameters_grad:
            self.at.record.parameters_grad(module, batch, grads)

    def buckets(self) -> list[tuple[int | None, Axis, list[str]]]:
        """Group modules into gradient buckets.

        Returns:
            For each bucket: the layer, None outside of one; the group that shares it; its modules.
        """
        found: dict[tuple[int | None, Axis], list[str]] = {}
        for module in reversed(self.weights):
            parts = module.split(".")
            layer = int(parts[1]) if parts[0] == "layers" else None
            axis: Axis = "expert_dp" if ".expert." in module else "dp"
            found.setdefault((layer, axis), []).append(module)
        return [(layer, axis, modules) for (layer, axis), modules in found.items()]
