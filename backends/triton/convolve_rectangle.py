"""The Triton function that computes a tile of a convolution on a rectangle; kernels of patches call it (`patch`)."""

CONVOLVE_RECTANGLE = '''@triton.jit
def convolve_rectangle(
    y_ptr, x_ptr, w_ptr, program,
    IMAGES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, GROUPS_FILTERS: tl.constexpr, CHANNELS: tl.constexpr,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, TAPS_DOWN: tl.constexpr, TAPS_ACROSS: tl.constexpr,
    STRIDE_DOWN: tl.constexpr, STRIDE_ACROSS: tl.constexpr, DILATION_DOWN: tl.constexpr, DILATION_ACROSS: tl.constexpr,
    TOP: tl.constexpr, LEFT: tl.constexpr,
    X_IMAGE: tl.constexpr, X_CHANNEL: tl.constexpr, X_ROW: tl.constexpr, X_COLUMN: tl.constexpr,
    W_FILTER: tl.constexpr, W_CHANNEL: tl.constexpr, W_DOWN: tl.constexpr, W_ACROSS: tl.constexpr,
    Y_IMAGE: tl.constexpr, Y_FILTER: tl.constexpr, Y_ROW: tl.constexpr, Y_COLUMN: tl.constexpr,
    PLACES_TILE: tl.constexpr, FILTERS_TILE: tl.constexpr, CHANNELS_TILE: tl.constexpr,
):
    """One tile of places and filters of a convolution, as a product over channels and taps."""
    place_tiles: tl.constexpr = (IMAGES * ROWS * COLUMNS + PLACES_TILE - 1) // PLACES_TILE
    filter_tiles: tl.constexpr = (GROUPS_FILTERS + FILTERS_TILE - 1) // FILTERS_TILE
    channel_tiles: tl.constexpr = (CHANNELS + CHANNELS_TILE - 1) // CHANNELS_TILE
    group = program // (place_tiles * filter_tiles)
    place = program % place_tiles * PLACES_TILE + tl.arange(0, PLACES_TILE)
    own = program // place_tiles % filter_tiles * FILTERS_TILE + tl.arange(0, FILTERS_TILE)
    image = place // (ROWS * COLUMNS)
    row = place // COLUMNS % ROWS
    column = place % COLUMNS
    total = tl.zeros((PLACES_TILE, FILTERS_TILE), tl.float32)
    for step in range(TAPS_DOWN * TAPS_ACROSS * channel_tiles):
        tap = step // channel_tiles
        channel = step % channel_tiles * CHANNELS_TILE + tl.arange(0, CHANNELS_TILE)
        down = tap // TAPS_ACROSS
        across = tap % TAPS_ACROSS
        y = row * STRIDE_DOWN + down * DILATION_DOWN - TOP
        x = column * STRIDE_ACROSS + across * DILATION_ACROSS - LEFT
        inside = (image < IMAGES) & (y >= 0) & (y < HEIGHT) & (x >= 0) & (x < WIDTH)
        pixels = (image * X_IMAGE + y * X_ROW + x * X_COLUMN)[:, None] + ((group * CHANNELS + channel) * X_CHANNEL)[None, :]
        left = tl.load(x_ptr + pixels, mask=inside[:, None] & (channel < CHANNELS)[None, :], other=0.0)
        taps = ((group * GROUPS_FILTERS + own) * W_FILTER)[None, :] + (channel * W_CHANNEL)[:, None]
        taps += down * W_DOWN + across * W_ACROSS
        right = tl.load(w_ptr + taps, mask=(channel < CHANNELS)[:, None] & (own < GROUPS_FILTERS)[None, :], other=0.0)
        total = tl.dot(left, right, total, input_precision="ieee")
    results = (image * Y_IMAGE + row * Y_ROW + column * Y_COLUMN)[:, None]
    results += ((group * GROUPS_FILTERS + own) * Y_FILTER)[None, :]
    mask = (image < IMAGES)[:, None] & (own < GROUPS_FILTERS)[None, :]
    tl.store(y_ptr + results, total.to(y_ptr.dtype.element_ty), mask=mask)
'''


__all__ = ["CONVOLVE_RECTANGLE"]
