# What the test runs in Python: modules in C and the interpreter itself, the same each time.
import decimal, hashlib, json, random, re, zlib

random.seed(6)
words = ["".join(random.choice("abcdefgh") for _ in range(random.randrange(1, 9))) for _ in range(300)]
text = " ".join(words)

data = {word: [index, index / 7, None, True, {"nested": word[::-1]}] for index, word in enumerate(words)}
packed = json.dumps(data, sort_keys=True)
assert json.loads(packed) == {key: list(value) for key, value in data.items()}
print(hashlib.sha256(packed.encode()).hexdigest())

print(len(re.findall(r"\b(\w)(\w*)\1\b", text)), re.sub(r"(a+)(b?)", r"<\2\1>", text)[:60])

squeezed = zlib.compress(packed.encode(), 9)
assert zlib.decompress(squeezed).decode() == packed
print(len(squeezed), zlib.crc32(squeezed), zlib.adler32(squeezed))

decimal.getcontext().prec = 60
print(sum(decimal.Decimal(n).sqrt() for n in range(1, 40)), decimal.Decimal(2) ** decimal.Decimal("0.1"))


def deep(depth):
    if depth == 0:
        raise ValueError("the bottom")
    try:
        return deep(depth - 1)
    finally:
        words.append(str(depth))


for depth in range(1, 30):
    try:
        deep(depth)
    except ValueError as error:
        words.append(str(error))
print(len(words), sorted(words)[:3], hash(tuple(range(50))), 2**0.5)
