"""Assignments of a course on parallel training, and their grader."""

from nnmpi.addons import AddOn

ADD_ON = AddOn(
    modules=("nnmpi.course",),
    commands={"course": ("nnmpi.course", "hand out assignments of a course, and grade them")},
    files=("course", "tests/course"),
)
