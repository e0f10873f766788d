"""SPACE: environments stepped at once, distances, and pictures of cubes."""

from collections.abc import Iterator

import numpy as np

from ritornello.experiments.benchmarks import Benchmark
from ritornello.methods.space.discrete_maps import swapped
from ritornello.methods.space.layouts import make_world
from ritornello.methods.space.mazes import MazeBatch, MazeEnv, carve_maze, far_ends
from ritornello.methods.space.paths import distances
from ritornello.methods.space.rotation import cube_chain, draw_cubes
from ritornello.methods.space.working_memory import (
    WorkingMemoryEnv,
    place_boxes,
    play_working_memory,
)


def benchmarks() -> Iterator[Benchmark]:
    """All comparisons of SPACE."""
    yield _boxes()
    yield _mazes()
    yield _distances()
    yield _cubes()


def _boxes() -> Benchmark:
    """200 games of 7 boxes without memory, up to 7,200 steps."""
    boxes = place_boxes(np.random.default_rng(0), 7)

    def ours() -> float:
        return float(play_working_memory(7, 200, "none", np.random.default_rng(1))["steps"].mean())

    def peer() -> float:
        rng, steps = np.random.default_rng(2), []
        for _ in range(200):
            env = WorkingMemoryEnv(boxes, rng.permutation(7).tolist())
            env.reset(rng)
            while not env.done:
                env.step(int(rng.integers(7)))
            steps.append(env.steps)
        return float(np.mean(steps))

    def agree(a: float, b: float) -> None:
        assert abs(a - b) < 3, (a, b)

    return Benchmark(
        "CSWM, 200 games of 7 boxes", ours, peer, "one environment at a time", 20.0, agree
    )


def _mazes() -> Benchmark:
    rng = np.random.default_rng(0)
    mazes = [carve_maze(rng, 21, 21) for _ in range(100)]
    ends = [far_ends(rng, maze) for maze in mazes]
    starts = np.array([start for start, _ in ends])
    moves = rng.integers(4, size=(50, 100))
    names = ("up", "down", "left", "right")
    stacked = np.stack(mazes)

    def ours() -> list[list[int]]:
        batch = MazeBatch(stacked, starts)
        for step in moves:
            batch.step(step)
        return batch.positions.tolist()

    envs = [MazeEnv(maze, *end) for maze, end in zip(mazes, ends, strict=True)]

    def peer() -> list[list[int]]:
        for index, env in enumerate(envs):
            env.reset()
            for step in moves:
                env.step(names[step[index]])
        return [list(env.position) for env in envs]

    def agree(a: list[list[int]], b: list[list[int]]) -> None:
        assert a == b

    return Benchmark(
        "100 mazes of 21 x 21, 50 steps each", ours, peer, "one environment at a time", 20.0, agree
    )


def _distances() -> Benchmark:
    import networkx

    world = make_world(np.random.default_rng(0), "hard")
    grid, start = world.grid, swapped(world.start)

    def ours() -> dict[tuple[int, int], int]:
        steps = distances(grid, start)
        return {(int(r), int(c)): int(steps[r, c]) for r, c in np.argwhere(steps >= 0)}

    def peer() -> dict[tuple[int, int], int]:
        graph = networkx.grid_2d_graph(*grid.shape)
        graph.remove_nodes_from([(int(r), int(c)) for r, c in np.argwhere(~grid)])
        return dict(networkx.single_source_shortest_path_length(graph, start))

    def agree(a: dict, b: dict) -> None:
        assert a == b

    return Benchmark("distances on a hard map", ours, peer, "networkx", 1.0, agree, inner=5)


def _cubes() -> Benchmark:
    chain = cube_chain(np.random.default_rng(0), 10)

    def ours() -> tuple[int, ...]:
        return draw_cubes(chain, 192).shape

    def peer() -> tuple[int, ...]:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from mpl_toolkits.mplot3d import Axes3D

        points = np.array(chain) - np.min(chain, axis=0)
        filled = np.zeros(points.max(axis=0) + 1, dtype=bool)
        for x, y, z in points:
            filled[x, y, z] = True
        figure = Figure(figsize=(1.92, 1.92), dpi=100)
        canvas = FigureCanvasAgg(figure)
        axes = figure.add_subplot(projection="3d", proj_type="ortho")
        assert isinstance(axes, Axes3D)
        axes.voxels(filled, facecolors="lightgrey", edgecolors="black")
        axes.set_axis_off()
        canvas.draw()
        return np.asarray(canvas.buffer_rgba())[..., :3].shape

    def agree(a: tuple[int, ...], b: tuple[int, ...]) -> None:
        assert a == b

    return Benchmark("picture of ten cubes, 192 px", ours, peer, "matplotlib voxels", 5.0, agree)
