#!/usr/bin/env python3
"""Writes tests/vector/sphere_reference.inc: Lloyd-Max levels for a coordinate of a random unit vector, at 40 digits.

    python3 scripts/reference/sphere_codebook.py > tests/vector/sphere_reference.inc

Needs mpmath. The mass of a cell comes from the hypergeometric function, its moment from the antiderivative; the levels are
the root of level = mean of its cell, found by mpmath's multidimensional Newton method from 300 steps of Lloyd's.
"""
import mpmath as mp

mp.mp.dps = 40


class Sphere:
    def __init__(self, dim):
        self.exponent, self.end = mp.mpf(dim - 3) / 2, mp.mpf(1)

    def mass(self, t):
        return t * mp.hyp2f1(0.5, -self.exponent, 1.5, t * t)

    def moment(self, t):
        return -((1 - t * t) ** (self.exponent + 1)) / (2 * (self.exponent + 1))

    def density(self, t):
        return (1 - t * t) ** self.exponent


class Gauss:
    def __init__(self, dim):
        self.scale, self.end = mp.sqrt(dim), mp.mpf(40) / mp.sqrt(dim)

    def mass(self, t):
        return mp.erf(t * self.scale / mp.sqrt(2)) / 2

    def moment(self, t):
        return -mp.exp(-((t * self.scale) ** 2) / 2) / mp.sqrt(2 * mp.pi) / self.scale


def means(density, levels):
    borders = [mp.mpf(0)] + [(a + b) / 2 for a, b in zip(levels, levels[1:])] + [density.end]
    mass, moment = [density.mass(b) for b in borders], [density.moment(b) for b in borders]
    return [(q - p) / (n - m) for p, q, m, n in zip(moment, moment[1:], mass, mass[1:])]


def codebook(density, dim, bits):
    count = 2 ** (bits - 1)
    levels = [2 * (i + mp.mpf(1) / 2) / (count * mp.sqrt(dim)) for i in range(count)]
    if levels[-1] >= 1:
        levels = [level / (levels[-1] * 1.1) for level in levels]
    for _ in range(300):
        levels = means(density, levels)
    if count == 1:
        return levels
    root = mp.findroot(lambda *x: [a - b for a, b in zip(x, means(density, list(x)))], levels, tol=1e-60)
    return list(root)


def error(dim, levels):
    """Of these levels under the sphere's density, by quadrature in the angle."""
    edges = [mp.mpf(0)] + [(a + b) / 2 for a, b in zip(levels, levels[1:])] + [mp.mpf(1)]
    angle, weight = [mp.asin(min(edge, mp.mpf(1))) for edge in edges], lambda u: mp.cos(u) ** (dim - 2)
    total = sum(mp.quad(lambda u: (mp.sin(u) - level) ** 2 * weight(u), [a, (a + b) / 2, b])
                for level, a, b in zip(levels, angle, angle[1:]))
    return total / mp.quad(weight, [0, mp.mpf(1) / 4, mp.mpf(1) / 2, 1, mp.pi / 2])


print("// Made by scripts/reference/sphere_codebook.py with mpmath", mp.__version__ + ": positive levels, and the error")
print("// E (t - level)^2 under the sphere's density.")
print("const struct {\n  bool gauss;\n  int dim, bits;\n  std::vector<double> levels;\n  double error;\n} kSphereReference[] = {")
for gauss, dim, bits in [(False, 2, 2), (False, 2, 4), (False, 4, 3), (False, 5, 2), (False, 64, 2), (False, 64, 3), (False, 80, 3),
                         (False, 128, 1), (False, 128, 4), (True, 16, 2), (True, 128, 3)]:
    levels = codebook(Gauss(dim) if gauss else Sphere(dim), dim, bits)
    text = ", ".join(mp.nstr(level, 17) for level in levels)
    print(f"    {{{str(gauss).lower()}, {dim}, {bits}, {{{text}}}, {mp.nstr(error(dim, levels), 17)}}},")
print("};")
