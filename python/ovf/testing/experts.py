"""The mixture of experts that stands in the place of a layer's perceptron."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ovf.testing.attention import LAST_DIM
from ovf.testing.rank import GRAD_SCALE, Compute, Rank
from ovf.testing.values import Scalar, TensorStat

if TYPE_CHECKING:
    from ovf.testing.channel import Channel
    from ovf.testing.mlp import Mlp
    from ovf.testing.modules import Modules


class Experts:
    """Router, dispatch, one expert a rank, combine; tokens travel by all_to_all_single."""

    def __init__(self, rank: Rank, modules: Modules, channel: Channel, mlp: Mlp) -> None:
        """Take what the rank's other parts share.

        Args:
            rank: the rank.
            modules: its modules.
            channel: its way to other ranks.
            mlp: runs the activation inside the expert.
        """
        self.at = rank
        self.modules = modules
        self.channel = channel
        self.mlp = mlp

    def forward(self, hidden: TensorStat, batch: int, layer: int, saved: dict[str, int]) -> Compute:
        """Route tokens to experts and combine what comes back.

        Args:
            hidden: activations.
            batch: the micro-batch.
            layer: the layer within the stage.
            saved: call numbers for the backward.

        Returns:
            Activations of the same shape.
        """
        record = self.at.record
        base = f"layers.{layer}.mlp"
        experts = self.at.training.layout.ep
        tokens = self.at.training.batch * self.at.training.sequence
        capacity = max(tokens // experts, 1)
        record.enter(f"{base}.MoE", "forward", batch)
        flat = hidden._replace(shape=(tokens, self.at.training.hidden))
        logits = self.modules.linear(flat, f"{base}.router.Linear", batch, saved)
        chances = self.at.draw(logits.shape, logits, scale=1.0)
        saved["route"] = record.call("Torch.softmax", "router", [logits, LAST_DIM], [chances])
        best = self.at.draw((tokens, 1), chances, scale=1.0)
        chosen = TensorStat("torch.int64", (tokens, 1), experts - 1, 0)
        saved["topk"] = record.call(
            "Torch.topk", "router", [chances, Scalar("int", 1)], [best, chosen], {"dim": LAST_DIM}
        )
        mask = TensorStat(self.at.dtype, (experts, capacity, tokens), 1.0, 0.0, 0.1, 16.0)
        shape = (experts, capacity, self.at.training.hidden)
        sent = self.at.draw(shape, flat)
        saved["dispatch"] = record.call("Torch.einsum", "dispatch", [Scalar("str", "ect,td->ecd"), mask, flat], [sent])
        received = yield from self.channel.all_to_all(sent)
        record.enter(f"{base}.expert.Expert", "forward", batch)
        wide = self.modules.linear(received, f"{base}.expert.fc1.Linear", batch, saved)
        active = self.mlp.activate(wide, batch, layer, saved)
        done = self.modules.linear(active, f"{base}.expert.fc2.Linear", batch, saved)
        record.leave([received], [done])
        back = yield from self.channel.all_to_all(done)
        out = self.at.draw((tokens, self.at.training.hidden), back, best)
        saved["combine"] = record.call("Torch.einsum", "combine", [Scalar("str", "ect,ecd->td"), mask, back], [out])
        out = out._replace(shape=self.at.hidden)
        record.leave([hidden], [out])
        return out

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
        record = self.at.record
        base = f"layers.{layer}.mlp"
        experts = self.at.training.layout.ep
        tokens = self.at.training.batch * self.at.training.sequence
        capacity = max(tokens // experts, 1)
        shape = (experts, capacity, self.at.training.hidden)
        record.enter(f"{base}.MoE", "backward", batch)
        flat = grad._replace(shape=(tokens, self.at.training.hidden))
        back = self.at.grad(shape, grad)
        record.backward("Torch.einsum", saved["combine"], [flat], [flat])
        done = yield from self.channel.all_to_all(back, GRAD_SCALE)
        record.enter(f"{base}.expert.Expert", "backward", batch)
        inner = self.modules.linear_backward(done, f"{base}.expert.fc2.Linear", batch, saved)
        inner = self.mlp.activate_backward(inner, batch, layer, saved)
        inner = self.modules.linear_backward(inner, f"{base}.expert.fc1.Linear", batch, saved)
        record.leave([done], [inner])
        sent = yield from self.channel.all_to_all(inner, GRAD_SCALE)
        record.backward("Torch.einsum", saved["dispatch"], [sent], [sent])
        best = self.at.grad((tokens, 1), grad)
        chances = self.at.grad((tokens, experts), best)
        record.backward("Torch.topk", saved["topk"], [best, None], [chances])
        logits = self.at.grad((tokens, experts), chances)
        record.backward("Torch.softmax", saved["route"], [chances], [logits])
        routed = self.modules.linear_backward(logits, f"{base}.router.Linear", batch, saved)
        out = self.at.grad(self.at.hidden, sent, routed)
        record.leave([grad], [out])
        return out
