"""Programs for devices: a binary without a C library gives the executor's bytes in the memory that is told."""

import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from app import samples
from app.engine.core.program import Program
from app.engine.export.static_program import (
    StaticProgram,
    identifier,
    static_archive,
    static_program,
)
from app.engine.runtime.cpu.executor import Executor
from app.engine.types.errors import ExportError
from app.engine.types.target import find
from app.kernels.cpu.runtime.compiler import Compiler
from app.kernels.cpu.runtime.processor import ARCHITECTURE, compiled_for
from app.kernels.library.elf import LinkError, RelocatableObject
from app.kernels.library.joining import joined
from app.kernels.library.object_file import MEMORY_FUNCTIONS, Emitter
from app.kernels.library.stack_depth import StackUse, deepest, stack_use
from tests.engine.export.files import unpacked_in
from tests.engine.export.test_library import NET, drawn, planned, planned_of

pytestmark = pytest.mark.skipif(ARCHITECTURE != "x86_64", reason="libraries are made on x86-64")
needs_linker = pytest.mark.skipif(
    not all(map(shutil.which, ("gcc", "ld", "readelf"))), reason="no gcc, ld or readelf on this machine"
)
HARNESS = Path(__file__).with_name("freestanding.c")
BUILD = (
    "gcc",
    "-O1",
    "-ffreestanding",
    "-fno-stack-protector",
    "-nostdlib",
    "-static",
    "-no-pie",
    "-fno-pic",
)
LOOP = """<ir_version: 10, opset_import: ["" : 21]>
net (float[2,3] x) => (float[2,3] y, float[4,2,3] each)
{
  n = Constant <value: tensor = int64 {4}> ()
  go = Constant <value: tensor = bool {1}> ()
  y, each = Loop (n, go, x) <body: graph = body (int64 i, bool c, float[2,3] a) => (bool d, float[2,3] b, float[2,3] e) {
    d = Identity (c)
    b = Tanh (a)
    e = Neg (b)
  }>
}"""


def unpacked(made: StaticProgram, folder: Path) -> Path:
    """The folder of the archive."""
    return unpacked_in(folder, static_archive, made)


def built(made: StaticProgram, folder: Path) -> Path:
    """A binary of the harness and the model, whose arrays end where a page does, with no page behind."""
    found = unpacked(made, folder)
    upper, told = made.name.upper(), made.metadata
    sizes = told["bytes"]
    assert isinstance(sizes, dict)

    def each(kind: str, text: str) -> str:
        values = told[kind + "s"]
        assert isinstance(values, list)
        found = []
        for n, value in enumerate(values):
            name = f"{upper}_{kind.upper()}_{n}"
            shape = "*".join(f"{name}_SHAPE[{axis}]" for axis in range(len(value["shape"])))
            length = shape if "prefix_axis" in value else f"{name}_LENGTH"
            found.append(text.format(name=name, size=f"({length}) * sizeof *{name}"))
        return " ".join(found)

    places = [
        f"-Wl,--section-start=.stowplan.{name}={0x40000000 + n * 0x10000000 - size:#x}"
        for n, (name, size) in enumerate((k, sizes[k]) for k in ("arena", "io", "weights"))
        if size
    ]
    subprocess.run(
        [
            *BUILD,
            *places,
            f'-DMODEL="{made.name}.h"',
            f"-DRUN={made.name}_run",
            f"-DREAD_INPUTS={each('input', 'whole(0, 0, {name}, {size});')}",
            f"-DWRITE_OUTPUTS={each('output', 'whole(1, 1, (void *){name}, {size});')}",
            f"-I{found}",
            str(HARNESS),
            str(found / f"{made.name}.o"),
            "-o",
            str(folder / "device"),
        ],
        check=True,
    )
    return folder / "device"


def sections(binary: Path) -> dict[str, int]:
    """Bytes of the sections of the model in a binary."""
    told = subprocess.run(["readelf", "-SW", str(binary)], capture_output=True, text=True, check=True).stdout
    rows = re.findall(r"\.stowplan\.(\w+) +(\w+) +\w+ \w+ (\w+)", told)
    return {name: int(size, 16) for name, _, size in rows}


def ran(binary: Path, inputs: Mapping[str, object]) -> tuple[bytes, int]:
    """Outputs one after another, and the bytes of stack."""
    given = b"".join(np.asarray(a).tobytes() for a in inputs.values())
    done = subprocess.run([str(binary)], input=given, capture_output=True, timeout=60)
    assert done.returncode == 0
    return done.stdout, int.from_bytes(done.stderr, "little")


def check(program: Program, compiler: Compiler, folder: Path, title: str) -> StaticProgram:
    """Equal bytes in the memory that is told, to the byte; returns the program."""
    made = static_program(program, compiler, title)
    binary = built(made, folder)
    sizes = made.metadata["bytes"]
    assert isinstance(sizes, dict)
    totals = {"flash": ("code", "constants", "weights", "data"), "ram": ("arena", "io", "zeroed", "data")}
    assert sections(binary) == {k: v for k, v in sizes.items() if v and k not in (*totals, "stack at most")}
    for total, parts in totals.items():
        assert sizes[total] == sum(sizes[part] for part in parts)
    assert sizes["arena"] == program.arena_bytes
    with closing(Executor(program, compiler)) as executor:
        for seed in range(4):
            inputs = drawn(program, seed)
            outputs, stack = ran(binary, inputs)
            assert outputs == b"".join(np.asarray(a).tobytes() for a in executor.run(inputs).values())
            assert 8 <= stack <= sizes["stack at most"] + 8  # the address that the harness's call leaves
    return made


@needs_linker
@pytest.mark.parametrize("text", [NET, LOOP], ids=["kernels", "loop"])
def test_a_binary_without_a_c_library_gives_the_executors_bytes(
    text: str, compiler: Compiler, tmp_path: Path
) -> None:
    made = check(planned(text, tmp_path), compiler, tmp_path, "a net")
    assert set(made.metadata["needs"]) <= {"memcpy"}  # type: ignore[call-overload]


@needs_linker
def test_a_small_network_fits_the_memory_that_is_told(compiler: Compiler, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(samples.mobilenetv2(0.35, 144))
    made = check(planned_of(path), compiler, tmp_path, "MobileNetV2 0.35")
    assert made.name == "mobilenetv2_0_35"


@needs_linker
def test_a_model_of_the_development_set_runs_without_a_c_library(
    compiler: Compiler, shared: Path, tmp_path: Path
) -> None:
    check(planned_of(shared / "models" / "mnist_8.onnx"), compiler, tmp_path, "mnist_8")


@needs_linker
def test_two_models_are_in_one_program(compiler: Compiler, tmp_path: Path) -> None:
    folders = []
    for name, text in (("first", NET), ("second", LOOP)):
        (tmp_path / name).mkdir()
        folders.append(unpacked(static_program(planned(text, tmp_path), compiler, name), tmp_path / name))
    main = '#include "first.h"\n#include "second.h"\nint main(void) { return first_run() + second_run(); }\n'
    (tmp_path / "main.c").write_text(main)
    objects = [str(folder / f"{name}.o") for folder, name in zip(folders, ("first", "second"))]
    subprocess.run(
        ["gcc", *(f"-I{folder}" for folder in folders), "main.c", *objects, "-lm", "-o", "main"],
        cwd=tmp_path,
        check=True,
    )
    assert subprocess.run([str(tmp_path / "main")]).returncode == 0


@needs_linker
def test_the_example_builds_as_the_archive_has_it(compiler: Compiler, tmp_path: Path) -> None:
    folder = unpacked(static_program(planned(NET, tmp_path), compiler, "a net"), tmp_path)
    command = re.search(r"^    (cc .*)$", (folder / "README").read_text(), re.M)
    assert command
    subprocess.run([*command[1].split(), "-Wall", "-Werror"], cwd=folder, check=True)
    assert subprocess.run([str(folder / "example")], capture_output=True).returncode == 0
    digests = json.loads((folder / "manifest.json").read_text())
    assert set(digests) == {p.name for p in folder.iterdir()} - {"manifest.json", "example"}


@needs_linker
def test_the_program_of_the_guide_runs_as_it_stands(compiler: Compiler, tmp_path: Path) -> None:
    guide = (Path(__file__).parents[3] / "docs" / "library.md").read_text(encoding="utf-8")
    _, program = re.findall(r"^```c\n(.*?)^```", guide, re.M | re.S)
    folder = unpacked(static_program(planned(NET, tmp_path), compiler, "resnet50"), tmp_path)
    (folder / "main.c").write_text(program)
    subprocess.run(["gcc", "-Wall", "-Werror", "main.c", "resnet50.o", "-o", "main"], cwd=folder, check=True)
    assert subprocess.run([str(folder / "main")]).returncode == 1  # a probability is above zero


def test_another_architecture_has_the_same_sections(compiler: Compiler, tmp_path: Path) -> None:
    made = static_program(planned(NET, tmp_path, target=find("cpu-neon")), compiler, "a net")
    names = {section.name for section in RelocatableObject(made.code).sections.values()}
    assert names >= {f".stowplan.{part}" for part in ("code", "weights", "arena", "io")}
    assert all(name.startswith(".stowplan.") for name in names)
    assert (
        made.code == static_program(planned(NET, tmp_path, target=find("cpu-neon")), compiler, "a net").code
    )


def test_several_threads_are_refused(compiler: Compiler, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="ask for threads 1"):
        static_program(planned(NET, tmp_path, threads=2), compiler, "a net")


@pytest.mark.parametrize(
    ("title", "name"),
    [("ResNet-50", "resnet_50"), ("1d conv", "model_1d_conv"), ("", "model"), ("ß", "model")],
)
def test_names_are_identifiers_of_c(title: str, name: str) -> None:
    assert identifier(title) == name


def test_names_end_no_comment_of_the_header(compiler: Compiler, tmp_path: Path) -> None:
    title = "a */ int x; /*\nnet"
    target = replace(find("cpu-avx2"), name="board */ int y; /*")
    header = static_program(planned(NET, tmp_path, target=target), compiler, title).header
    text = re.sub(r"/\*.*?\*/", "", header, flags=re.S)
    assert not re.search(r"\bint [xy]\b|\*/|/\*", text)


@needs_linker
def test_memory_functions_do_as_those_of_the_c_library(tmp_path: Path) -> None:
    """Beside a loop over bytes, at all distances and lengths of a window; the object's functions come first."""
    text = MEMORY_FUNCTIONS.read_text(encoding="utf-8")
    exports = ("memset", "memmove", "memcmp", "bcmp")
    (tmp_path / "own.o").write_bytes(joined([Emitter(compiled_for()).of_assembly(text)], exports))
    (tmp_path / "main.c").write_text(
        """#include <stddef.h>
#include <string.h>
int bcmp(const void *, const void *, size_t);
enum { N = 70 };
static unsigned char a[N], b[N], c[N];
static int same(void) { for (int i = 0; i < N; i++) if (a[i] != b[i]) return 0; return 1; }
static void fill(void) { for (int i = 0; i < N; i++) a[i] = b[i] = c[i] = (unsigned char)(i * 37 + 11); }
int main(void) {
    for (int from = 0; from < N; from++) for (int to = 0; to < N; to++)
        for (int n = 0; n <= N - (from > to ? from : to); n++) {
            fill();
            if (memmove(a + to, a + from, n) != a + to) return 1;
            for (int i = 0; i < n; i++) b[to + i] = c[from + i];
            if (!same()) return 2;
            fill();
            if (memset(a + to, from + 256, n) != a + to) return 3;
            for (int i = 0; i < n; i++) b[to + i] = (unsigned char)from;
            if (!same()) return 4;
            fill();
            int order = 0;
            for (int i = 0; i < n && !order; i++) order = a[from + i] - a[to + i];
            if (memcmp(a + from, a + to, n) != order || !bcmp(a + from, a + to, n) != !order) return 5;
        }
    return 0;
}
"""
    )
    command = ["gcc", "-O1", "-fno-builtin", "main.c", "own.o", "-o", "main"]
    subprocess.run(command, cwd=tmp_path, check=True)
    assert subprocess.run([str(tmp_path / "main")]).returncode == 0


X86 = """	.text
first:
	pushq	%rbp
	pushq	%rbx
	subq	$40, %rsp
	callq	inner
	callq	memcpy@PLT
	retq
inner:
	.cfi_startproc
	andq	$-64, %rsp
	addq	$-128, %rsp
	jmp	elsewhere
leaf:
	jmp	.L1
.L1:
	retq
"""
ARM = """first:
	stp	x29, x30, [sp, #-32]!
	sub	sp, sp, #1, lsl #12
	sub	sp, sp, #16
	bl	inner
	b	.LBB0
inner:
	str	d8, [sp, #-16]!
	ret
"""


@pytest.mark.parametrize(
    ("architecture", "text", "entry", "use"),
    [
        ("x86_64", X86, "first", StackUse(64 + 192 + 8, {"elsewhere": 64 + 192 + 8, "memcpy": 64})),
        ("x86_64", X86, "leaf", StackUse(128, {})),
        ("aarch64", ARM, "first", StackUse(32 + 4096 + 16 + 16, {})),
    ],
)
def test_the_stack_of_a_function(architecture: str, text: str, entry: str, use: StackUse) -> None:
    assert stack_use(text, entry, architecture) == use


@pytest.mark.parametrize("line", ["callq\t*%rax", "subq\t%rax, %rsp", "callq\tf"])
def test_a_stack_of_unknown_depth_is_refused(line: str) -> None:
    with pytest.raises(LinkError, match="not known"):
        stack_use(f"f:\n\t{line}\n", "f", "x86_64")


def test_the_deepest_calls_count() -> None:
    uses = {"run": StackUse(10, {"a": 8, "b": 16}), "a": StackUse(50, {"b": 20}), "b": StackUse(40, {})}
    assert deepest(uses, "run") == 8 + 20 + 40
    with pytest.raises(LinkError, match="calls itself"):
        deepest({"a": StackUse(8, {"b": 8}), "b": StackUse(8, {"a": 8})}, "a")
