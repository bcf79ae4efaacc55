"""Assignments of a course on parallel training, and their grader."""

from nnmpi.addons import AddOn

ADD_ON = AddOn(
    modules=("nnmpi.addons.course", "nnmpi.course"),
    commands={
        "course": (
            "nnmpi.addons.course.command",
            "hand out assignments of a course, and grade them",
        )
    },
    files=("course",),
)
