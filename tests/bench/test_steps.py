"""What is timed is what a program would do: training and inference, in every type."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gspool.bench.steps import InferenceStep, TrainingStep, failures_told, peak_memory

CPU = torch.device("cpu")


def test_a_training_step_leaves_the_gradients_of_one_step_however_often_it_is_made():
    layer, inputs = nn.Linear(5, 3), torch.randn(4, 5)
    step = TrainingStep(layer, inputs)
    for _ in range(3):
        step()
    torch.testing.assert_close(step.inputs.grad, step.incoming @ layer.weight)
    torch.testing.assert_close(layer.weight.grad, step.incoming.T @ inputs)
    step.forget()
    assert step.inputs.grad is None
    assert layer.weight.grad is None


def test_images_of_a_network_want_no_gradient():
    step = TrainingStep(nn.Linear(5, 3), torch.randn(4, 5), inputs_learn=False)
    step()
    assert step.inputs.grad is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_training_in_a_half_type_is_mixed_precision(dtype):
    step = TrainingStep(nn.Linear(5, 3), torch.randn(4, 5, dtype=dtype), dtype)
    step()
    assert step.module.weight.dtype == step.module.weight.grad.dtype == torch.float32
    assert step.forward().dtype == dtype


def test_training_in_float64_is_float64_throughout():
    step = TrainingStep(nn.Linear(5, 3), torch.randn(4, 5, dtype=torch.float64), torch.float64)
    step()
    assert step.module.weight.grad.dtype == torch.float64


def test_inference_has_the_type_throughout_no_graph_and_evaluation_mode():
    module = nn.Sequential(nn.Linear(5, 3), nn.Dropout(0.5))
    step = InferenceStep(module, torch.randn(4, 5, dtype=torch.bfloat16), torch.bfloat16)
    assert not module.training
    assert step.forward().dtype == torch.bfloat16
    assert not step.forward().requires_grad
    torch.testing.assert_close(step.forward(), step.forward())


def test_memory_is_counted_on_a_gpu_alone():
    assert peak_memory(TrainingStep(nn.Linear(5, 3), torch.randn(4, 5)), CPU) is None


class Stubborn(nn.Module):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        raise self.error


def tried(error: Exception, dtype: torch.dtype) -> None:
    with failures_told("cbam", dtype, CPU):
        TrainingStep(Stubborn(error), torch.zeros(1), dtype)


def test_a_type_that_cannot_be_computed_in_is_said_in_words():
    error = RuntimeError("not implemented for 'Half'\nand a long trace")
    with pytest.raises(ValueError, match=r"cbam cannot run in float16 on cpu \(not implemented for 'Half'\); take"):
        tried(error, torch.float16)


def test_a_fault_in_float32_keeps_its_traceback():
    with pytest.raises(RuntimeError, match="a fault"):
        tried(RuntimeError("a fault"), torch.float32)


def test_a_full_memory_is_said_in_words():
    with pytest.raises(ValueError, match="cbam does not fit into the memory of cpu; take a smaller batch"):
        tried(torch.OutOfMemoryError("tried to allocate"), torch.float32)
