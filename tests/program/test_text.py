"""The text form of a program, to the letter, and the schedule as PyTorch writes it."""

from program import expand
from program.text import instruction_text, kernel_text, program_text, schedule_csv, size_text
from tests.program.handmade import GEMM, tiny_program

EXPECTED = """\
       0 recv_fwd  F RECV0.1 head           recv pp_prev#fwd.0 128 B fp32
       1 compute   F F0.1 head              waits 0 | gemm(4,8,8 fp32 nt)
       2 recv_fwd  F RECV1.1 head           recv pp_prev#fwd.1 128 B fp32
       3 compute   F F1.1 head              waits 2 | gemm(4,8,8 fp32 nt)
       4 compute   B I0.1 head              gemm(4,8,8 fp32 nt)
       5 compute   W W0.1 head              gemm(4,8,8 fp32 nt) | frees 1
       6 send_bwd  B SEND0.1 head           waits 4 | send pp_prev#bwd.0 128 B fp32
       7 compute   B I1.1 head              gemm(4,8,8 fp32 nt)
       8 compute   W W1.1 head              gemm(4,8,8 fp32 nt) | frees 1
       9 send_bwd  B SEND1.1 head           waits 7 | send pp_prev#bwd.1 128 B fp32
      10 dp        step AR0 bucket          waits 8 | all_reduce dp#grads.0 512 B fp32 sum
"""


def test_every_instruction_is_one_line_with_its_waits_communication_and_kernels() -> None:
    lines = [instruction_text(placed) for placed in expand(tiny_program().classes[1])]
    assert "\n".join(lines[:11]) + "\n" == EXPECTED
    assert lines[11].split("|")[1:] == [" host waits ", " adamw(128 fp32) ", " frees 2"]


def test_the_header_says_who_runs_it_and_what_it_holds() -> None:
    program = tiny_program()
    header = [line for line in program_text(program, 3) if line.startswith("#")]
    assert (
        header[0] == f"# stage 1 of 2 · rank 3 of 4 (class 1, 2 ranks) · 2 micro-batches · program {program.hash[:16]}"
    )
    assert header[1] == "# groups: dp 2,3 · pp_next 1,3 · pp_prev 1,3"
    assert "# block B: 2 instructions x 2 calls, leaves 0 B, peaks at 128 B" in header
    assert "# resident 1.8 KiB: comm 256 B · grad 512 B · optim 512 B · weight 512 B" in header
    assert header[-1] == "# rule pipeline: separate"


def test_sizes_and_kernels_read_well() -> None:
    assert [size_text(n) for n in (0, 1023, 1024, 5 * 2**30, 2**51)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "5.0 GiB",
        "2048.0 TiB",
    ]
    assert kernel_text(GEMM[0]) == "gemm(4,8,8 fp32 nt)"


def test_the_schedule_is_written_as_pytorch_reads_it() -> None:
    assert schedule_csv(tiny_program()) == "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n"
