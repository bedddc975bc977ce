"""The three things the bench and the demo ask a model for, from little to much repetition."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Task:
    """One prompt: `title` for people, `prompt` for the model, `tokens` at most to generate."""

    name: str
    title: str
    prompt: str
    tokens: int


CODE_TO_EDIT = """class Account:
    def __init__(self, owner, balance=0):
        self.owner = owner
        self.balance = balance

    def deposit(self, amount):
        if amount <= 0:
            raise ValueError("amount must be positive")
        self.balance += amount
        return self.balance

    def withdraw(self, amount):
        if amount > self.balance:
            raise ValueError("not enough money")
        self.balance -= amount
        return self.balance
"""

TASKS = (
    Task("chat", "A question", "Why is the sky blue? Answer in a short paragraph.", 128),
    Task(
        "code",
        "A code request",
        "Write a Python function that returns the n-th Fibonacci number, with a docstring, "
        "and show how to call it.",
        192,
    ),
    Task(
        "edit",
        "An edit of given code",
        "Rename the method `deposit` to `add` in this class and print the whole class again:\n\n"
        f"```python\n{CODE_TO_EDIT}```",
        192,
    ),
)
