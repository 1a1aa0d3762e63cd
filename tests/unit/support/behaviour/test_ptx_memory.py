"""The emulator's memory, warps and barriers: what they give, and what they do not forgive."""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from tests.support.ptx.parse import PtxError
from tests.support.ptx.tiny import run
from tests.support.ptx.warpgroups import places

INT = torch.int32

OWN = "mad.wide.u32 %d9, %t, 4, %d0; "
"""Each thread's place in the first tensor."""
SHARED = "mov.b32 %r0, global_smem; shl.b32 %r1, %t, 2; add.s32 %r1, %r1, %r0; "
"""And in shared memory."""


def numbers(count: int) -> Tensor:
    return torch.arange(count, dtype=INT)


def test_memory_of_the_launch_and_no_other() -> None:
    out = numbers(8)
    run("ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%d0+16]; st.global.v2.b32 [%d0], {%r4, %r1};", [out])
    assert out.tolist() == [7, 4, 2, 3, 4, 5, 6, 7]
    for line in ("ld.global.b32 %r1, [%d0+32];", "ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%d0+16];"):
        with pytest.raises(PtxError, match="beyond"):
            run(line, [numbers(7)])
    with pytest.raises(PtxError, match="does not divide"):
        run("ld.global.v2.b32 {%r1, %r2}, [%d0+4];", [out])
    run("setp.gt.u32 %p1, %t, 99; @%p1 ld.global.b32 %r1, [%d0+4000];", [out])


def test_threads_part_and_meet_again() -> None:
    """Each goes round as often as its number says; then all shuffle."""
    out = torch.zeros(64, dtype=INT)
    run(
        f"""{OWN} mov.b32 %r1, 0; mov.b32 %r2, %t;
        $again: setp.eq.b32 %p1, %r2, 0; @%p1 bra $out;
        add.s32 %r1, %r1, 2; sub.s32 %r2, %r2, 1; bra.uni $again;
        $out: shfl.sync.bfly.b32 %r3, %r1, 1, 31, -1; st.global.b32 [%d9], %r3;""",
        [out],
        threads=64,
    )
    assert out.equal(2 * (numbers(64) ^ 1))


SHUFFLES = [
    ("bfly", "16, 31", lambda lane: lane ^ 16),
    ("idx", "5, 31", lambda lane: 0 * lane + 5),
    ("idx", "1, 0x1C1F", lambda lane: lane // 4 * 4 + 1),
    ("up", "3, 0", lambda lane: torch.where(lane < 3, lane, lane - 3)),
    ("down", "3, 31", lambda lane: torch.where(lane > 28, lane, lane + 3)),
]


@pytest.mark.parametrize(("how", "by", "source"), SHUFFLES)
def test_shuffles(how: str, by: str, source) -> None:
    out = torch.zeros(32, dtype=INT)
    run(f"{OWN} shfl.sync.{how}.b32 %r1, %t, {by}, -1; st.global.b32 [%d9], %r1;", [out])
    assert out.equal(source(numbers(32)).int())


def test_reductions_of_a_warp_and_who_does_not_come() -> None:
    out = torch.zeros(64, dtype=INT)
    run(f"{OWN} redux.sync.add.s32 %r1, %t, -1; st.global.b32 [%d9], %r1;", [out], threads=64)
    assert out.tolist() == [496] * 32 + [1520] * 32
    with pytest.raises(PtxError, match="only some threads"):
        run("setp.lt.u32 %p1, %t, 5; @%p1 redux.sync.max.s32 %r1, %t, -1;", [out])


def test_additions_of_all_threads() -> None:
    out = torch.zeros(1, dtype=INT)
    run("atom.global.gpu.acq_rel.add.u32 _, [%d0], %t;", [out], threads=64, programs=300)
    assert out.item() == 300 * 63 * 32


TURN = f"""{OWN} {SHARED} st.shared.b32 [%r1], %t;
    BARRIER xor.b32 %r2, %t, 63; shl.b32 %r2, %r2, 2; add.s32 %r2, %r2, %r0;
    ld.shared.b32 %r3, [%r2]; st.global.b32 [%d9], %r3;"""


def test_between_warps_there_is_a_barrier() -> None:
    out = torch.zeros(64, dtype=INT)
    run(TURN.replace("BARRIER", "bar.sync 0;"), [out], threads=64, shared=256)
    assert out.equal(numbers(64).flip(0))
    with pytest.raises(PtxError, match="no barrier"):
        run(TURN.replace("BARRIER", ""), [out], threads=64, shared=256)
    again = TURN.replace("BARRIER", "bar.sync 0;") + "st.shared.b32 [%r1], %t;"
    with pytest.raises(PtxError, match="no barrier"):
        run(again, [out], threads=64, shared=256)
    with pytest.raises(PtxError, match="never come"):
        run("setp.lt.u32 %p1, %t, 32; @%p1 bra $on; bar.sync 0; $on: bar.sync 0;", [out], threads=64)


def test_what_another_warp_left_in_device_memory() -> None:
    body = f"""{OWN} st.global.b32 [%d9], %t; BARRIER
        xor.b32 %r2, %t, 32; mad.wide.u32 %d8, %r2, 4, %d0; ld.global.b32 %r3, [%d8];"""
    run(body.replace("BARRIER", "bar.sync 0;"), [numbers(64)], threads=64)
    with pytest.raises(PtxError, match="no barrier"):
        run(body.replace("BARRIER", ""), [numbers(64)], threads=64)
    each = "mov.u32 %r1, %ctaid.x; mad.wide.u32 %d9, %r1, 4, %d0; st.global.b32 [%d9], %r1;"
    with pytest.raises(PtxError, match="another program"):
        run(f"{each} ld.global.b32 %r2, [%d0];", [numbers(2)], programs=2)


def test_shared_memory_is_written_first_and_has_an_end() -> None:
    with pytest.raises(PtxError, match="nobody has written"):
        run(f"{SHARED} ld.shared.b32 %r2, [%r1];", [], shared=128)
    with pytest.raises(PtxError, match="beyond"):
        run(f"{SHARED} st.shared.b32 [%r1], %t;", [], shared=124)
    with pytest.raises(PtxError, match="different numbers"):
        run(f"{SHARED} st.shared.b32 [%r0], %t;", [], shared=124)


COPY = f"""{OWN} {SHARED} setp.lt.u32 %p1, %t, 4; selp.b32 %r5, 4, 0, %p1;
    cp.async.ca.shared.global [%r1], [%d9], 0x4, %r5; cp.async.commit_group;
    cp.async.commit_group; cp.async.wait_group WAIT;
    ld.shared.b32 %r2, [%r1]; mad.wide.u32 %d8, %t, 4, %d1; st.global.b32 [%d8], %r2;"""


def test_a_copy_has_arrived_when_it_was_waited_for() -> None:
    source, out = numbers(32) + 7, torch.full((32,), -1, dtype=INT)
    run(COPY.replace("WAIT", "1"), [source, out], shared=128)
    assert out.tolist() == [7, 8, 9, 10] + [0] * 28, "beyond the source's size there are zeros"
    with pytest.raises(PtxError, match="nobody waited"):
        run(COPY.replace("WAIT", "2"), [source, out], shared=128)


MULTIPLY = """mul.wide.u32 %d9, %t, 4;
    add.s64 %d5, %d0, %d9; add.s64 %d6, %d1, %d9; mad.wide.u32 %d7, %t, 16, %d2;
    mov.b32 %r0, global_smem; mad.lo.s32 %r7, %t, 4, %r0;
    STORE bar.sync 0;
    and.b32 %r2, %t, 15; shr.u32 %r3, %t, 4; mad.lo.s32 %r4, %r2, 32, %r0; mad.lo.s32 %r4, %r3, 16, %r4;
    ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r10, %r11, %r12, %r13}, [%r4];
    mad.lo.s32 %r5, %r2, 16, %r0;
    ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%r14, %r15, %r16, %r17}, [%r5+512];
    mov.b32 %r20, 0;
    mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%r20, %r21, %r22, %r23}, {%r10, %r11, %r12, %r13},
        {%r14, %r15}, {%r20, %r20, %r20, %r20};
    st.global.v4.b32 [%d7], {%r20, %r21, %r22, %r23};"""


def test_a_product_of_matrices() -> None:
    """left [16, 16] and right [16, 8] by way of shared memory; the result as a warp's threads have it."""
    left, right = (
        torch.randn(shape, generator=torch.Generator().manual_seed(8)).half() for shape in ((16, 16), (16, 8))
    )
    lines = [
        f"ld.global.b32 %r6, [{base}+{128 * part}]; st.shared.b32 [%r7+{to + 128 * part}], %r6;"
        for base, to, parts in (("%d5", 0, 4), ("%d6", 512, 2))
        for part in range(parts)
    ]
    out = torch.zeros((32, 4))
    run(MULTIPLY.replace("STORE", " ".join(lines)), [left, right, out], shared=768)
    found = torch.zeros((16, 8))
    for lane in range(32):
        row, column = lane // 4, lane % 4 * 2
        found[row, column : column + 2], found[row + 8, column : column + 2] = out[lane, :2], out[lane, 2:]
    assert_close(found, left.float() @ right.float(), atol=1e-5, rtol=1e-5)


def test_what_a_launch_asks_for_is_counted() -> None:
    source = torch.zeros(32 * 32, dtype=INT)
    beside = run(f"{OWN} ld.global.b32 %r1, [%d9];", [source])
    apart = run("mad.wide.u32 %d9, %t, 128, %d0; ld.global.b32 %r1, [%d9];", [source])
    assert (beside.wanted, beside.sectors) == (128, 4)
    assert (apart.wanted, apart.sectors) == (128, 32)
    assert apart.instructions["ld"] == 2
    for stride, turns in ((4, 1), (8, 2), (128, 32)):
        line = f"mov.b32 %r0, global_smem; mad.lo.s32 %r1, %t, {stride}, %r0; st.shared.b32 [%r1], %t;"
        counts = run(line, [], shared=4096)
        assert (counts.turns, counts.least) == (turns, 1)
    line = "mad.lo.s32 %r1, %t, 16, %r0; st.shared.v4.b32 [%r1], {%t, %t, %t, %t};"
    wide = run(f"mov.b32 %r0, global_smem; {line}", [], shared=512)
    assert (wide.turns, wide.least) == (4, 4)


GROUP = """mov.b32 %r0, global_smem; and.b32 %r1, %t, 31; shr.u32 %r2, %t, 5;
    STORE
    FENCE bar.sync 0;
    shr.u32 %r4, %r0, 4; cvt.u64.u32 %d5, %r4; or.b64 %d6, %d5, DESCRIPTOR;
    wgmma.fence.sync.aligned;
    wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%r20, %r21, %r22, %r23}, {%r10, %r11, %r12, %r13},
        %d6, 0, 1, 1, TURNED;
    wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%r20, %r21, %r22, %r23}, {%r10, %r11, %r12, %r13},
        %d6, 1, 1, 1, TURNED;
    wgmma.commit_group.sync.aligned; WAIT
    mad.wide.u32 %d7, %t, 16, %d2; st.global.v4.b32 [%d7], {%r20, %r21, %r22, %r23};"""


@pytest.mark.parametrize("turned", [False, True])
def test_a_product_of_a_group_of_warps(turned: bool) -> None:
    """Twice left [64, 16] from registers, times right [16, 8] from shared memory, not swizzled."""
    drawn = torch.randn((80, 16), generator=torch.Generator().manual_seed(9)).half()
    left, right = drawn[:64].contiguous(), drawn[64:, :8].contiguous()
    # Rows of 16 bytes: of each column the first half of the depth, then the second; turned, of each depth.
    rows = right if turned else torch.cat((right[:8].T, right[8:].T))
    load = " ".join(
        f"ld.global.b32 %r1{part}, [%d9+{16 * (part // 2) + 256 * (part % 2)}];" for part in range(4)
    )
    store = f"""and.b32 %r5, %t, 3; shr.u32 %r6, %r1, 2;
        mad.lo.s32 %r7, %r2, 16, %r6; mul.lo.s32 %r7, %r7, 32; mad.lo.s32 %r7, %r5, 4, %r7;
        cvt.u64.u32 %d8, %r7; add.s64 %d9, %d0, %d8; {load}
        mad.wide.u32 %d9, %r1, 8, %d1; ld.global.b64 %d10, [%d9];
        mad.lo.s32 %r3, %r1, 8, %r0; setp.lt.u32 %p1, %t, 32; @%p1 st.shared.b64 [%r3], %d10;"""
    body = GROUP.replace("STORE", store).replace("TURNED", str(int(turned)))
    body = body.replace("DESCRIPTOR", str(8 << 16 | 8 << 32))
    fenced = body.replace("FENCE", "fence.proxy.async.shared::cta;")
    wait, out = "wgmma.wait_group.sync.aligned 0;", torch.zeros((128, 4))
    run(fenced.replace("WAIT", wait), [left, rows.contiguous(), out], threads=128, shared=256)
    found = out.view(4, 8, 4, 2, 2).permute(0, 3, 1, 2, 4).reshape(64, 8)
    assert_close(found, 2 * left.float() @ right.float(), atol=1e-5, rtol=1e-5)
    run(fenced.replace("WAIT", ""), [left, rows.contiguous(), out], threads=128, shared=256)
    assert out.isnan().all(), "nobody waited"
    with pytest.raises(PtxError, match="no fence"):
        run(body.replace("FENCE", "").replace("WAIT", wait), [left, rows, out], threads=128, shared=256)


@pytest.mark.parametrize(("kind", "width"), [(1, 8), (2, 4), (3, 2)])
def test_where_swizzled_matrices_lie(kind: int, width: int) -> None:
    """In rows of 32, 64 and 128 bytes: eight are a pattern, the next ones lie a stride further."""
    descriptor = kind << 62 | 64 << 32 | 100 << 16
    straight, turned = places(descriptor, 64, False), places(descriptor, 128, True)
    assert straight[3].tolist() == [16 * (3 * width), 16 * (3 * width + 1)]
    assert straight[19, 1] == 16 * (2 * 64 + 3 * width + 1)
    assert turned[width + 1, 0] == 16 * (100 + 1)
    assert turned[1, 9] == 16 * (64 + width + 1)
