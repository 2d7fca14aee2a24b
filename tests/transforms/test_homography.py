"""The arithmetic of geometric steps, which needs no torchvision."""

import math

import numpy as np
import pytest

from energon_stream.transforms import homography as h

EYE = np.eye(3)


def test_points_go_where_the_matrices_say():
    point = np.array([3.0, 4.0])
    assert h.places(h.translate(1, 2), point).tolist() == [4, 6]
    assert h.places(h.scale(2, 3), point).tolist() == [6, 12]
    assert h.places(h.shear(0.5, 2), point).tolist() == [5, 10]
    assert h.places(h.hflip(), point).tolist() == [-3, 4]
    assert h.places(h.vflip(), point).tolist() == [3, -4]
    # y goes down, so a counter-clockwise quarter turn takes what lies right to the top.
    assert h.places(h.rotate(math.pi / 2), np.array([1.0, 0.0])) == pytest.approx([0, -1])
    assert h.places(h.about(h.rotate(1), 5, 6), np.array([5.0, 6.0])) == pytest.approx([5, 6])


def test_affine_is_rotation_shear_and_scale():
    assert h.affine(0, 1, (0, 0)) == pytest.approx(EYE)
    assert h.affine(30, 2, (0, 0)) == pytest.approx(h.scale(2, 2) @ h.rotate(math.radians(-30)))
    leaning = h.affine(0, 1, (45, 0))
    assert h.places(leaning, np.array([0.0, 1.0])) == pytest.approx([-1, 1])


def test_a_homography_maps_four_places():
    start, end = [[0, 0], [9, 0], [9, 7], [0, 7]], [[1, 2], [8, 1], [9, 6], [2, 7]]
    assert h.places(h.homography(start, end), np.array(start, float)) == pytest.approx(np.array(end, float))


def test_sizes_are_torchvisions():
    assert h.resized_size((100, 50), 10) == (20, 10)
    assert h.resized_size((50, 101), [10]) == (10, 20)
    assert h.resized_size((100, 50), (7, 9)) == (7, 9)
    assert h.resized_size((100, 50), 30, 40) == (40, 20)
    quarter = h.about(h.rotate(math.pi / 2), 25, 50)
    assert h.rotated_size(quarter, (100, 50)) == (50, 100)


def test_a_frame_is_needed_where_the_result_reaches_beyond_it():
    frame = h.Clip(EYE, (10, 20))
    assert h.needed_clips([frame], h.translate(-2, -3), (5, 5)) == []
    assert h.needed_clips([frame], h.translate(2, 0), (5, 5)) == [frame]
    assert h.needed_clips([frame], h.translate(10, 0) @ h.hflip() @ h.translate(-5, 0), (10, 10)) == []
    turned = h.about(h.rotate(0.5), 10, 5)
    assert h.needed_clips([frame], turned, (10, 20)) == [frame]
    cropped = h.Clip(h.translate(-5, -2), (4, 4))
    assert h.needed_clips([frame, cropped], h.translate(-5, -2), (4, 4)) == []
    assert h.needed_clips([frame, cropped], h.translate(-4, -2), (4, 4)) == [cropped]


def test_shrinking_is_a_factor_a_side():
    assert h.shrinking(h.scale(0.5, 3), (10, 10)) == pytest.approx((1, 0.5))
    assert h.shrinking(h.rotate(0.7) @ h.scale(0.5, 0.25), (10, 10)) == pytest.approx((0.25, 0.5))


def test_crops_resizes_and_flips_are_boxes():
    assert h.source_box(EYE, (4, 6)) == (0, 0, 4, 6, False, False)
    cropped = h.scale(0.5, 2) @ h.translate(-3, -1)
    assert h.source_box(cropped, (8, 5)) == (1, 3, 4, 10, False, False)
    assert h.source_box(h.translate(5, 0) @ h.hflip() @ cropped, (8, 5)) == (1, 3, 4, 10, True, False)
    assert h.source_box(h.translate(0.5, 0), (4, 4)) is None
    assert h.source_box(h.rotate(0.1), (4, 4)) is None
