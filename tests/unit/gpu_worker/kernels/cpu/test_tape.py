"""A tape repeats the calls of kernels that it has recorded, on what lies at their addresses by then."""

import ctypes
import threading

import pytest
import torch

from gpu_worker.kernels.cpu.layers import CpuNorm
from gpu_worker.kernels.cpu.linear import PackedLinear
from gpu_worker.kernels.cpu.tape import Tape


def test_calls_are_repeated_in_their_order(native: ctypes.CDLL) -> None:
    norm, product = CpuNorm(native, torch.rand(24), 1e-5), PackedLinear(native, torch.randn(24, 24))
    tape, hidden, residual = Tape(native), torch.randn(3, 24), torch.randn(3, 24)
    with tape.recording():
        normed = norm(hidden)
        product.add_to(normed, residual)
    hidden.copy_(torch.randn(3, 24))
    residual.zero_()
    tape.play()
    assert normed.equal(norm(hidden))
    assert residual.equal(product(normed))


def test_every_bit_of_an_argument_is_kept(native: ctypes.CDLL) -> None:
    """A number of float32, which Python has as float64."""
    eps = 0.1
    norm, hidden = CpuNorm(native, torch.ones(8), eps), torch.full((1, 8), 1e-3)
    tape = Tape(native)
    with tape.recording():
        out = norm(hidden)
    expected = out.clone()
    out.zero_()
    tape.play()
    assert out.equal(expected)


def test_only_what_the_thread_calls_within_with_is_recorded(native: ctypes.CDLL) -> None:
    norm, hidden = CpuNorm(native, torch.ones(8), 1e-5), torch.randn(1, 8)
    tape = Tape(native)
    norm(hidden)
    with tape.recording():
        other = threading.Thread(target=norm, args=(hidden,))
        other.start()
        other.join()
    norm(hidden)
    assert not tape.words
    with pytest.raises(KeyError), tape.recording():
        raise KeyError
    norm(hidden)
    assert not tape.words, "recording has ended with the exception"
    tape.play()
