/* accumulate.c - a window of 10 rows in micro-batches of 4, 4 and 2 gives the gradient of the whole batch.
 *
 *     cc accumulate.c $(pkg-config --cflags --libs plimsoll) -lm -o accumulate && ./accumulate
 */
#include <plimsoll/plimsoll.h>

#include <math.h>
#include <stdio.h>

enum { ROWS = 10, MICRO = 4 };

/* A model with one weight: loss = (w * x - y)^2 / 2, summed over rows. Returns the gradient of the sum. */
static double backward(double w, int first, int rows, double *loss)
{
    double grad = 0;
    for (int x = first + 1; x <= first + rows; x++) {
        double error = w * x - 3 * x; /* the answer is w = 3 */
        *loss += error * error / 2;
        grad += error * x;
    }
    return grad;
}

int main(void)
{
    struct plim_error err = {0};
    struct plim_context *context;
    struct plim_accumulator *acc;
    /* Three micro-batches per optimizer step. Each says how many rows it has: the short last one weighs less. */
    struct plim_accumulator_options options = {.size = sizeof options, .steps = 3, .clip_norm = 50, .loss_scaling = 1};
    if (plim_context_open(NULL, &context, &err) != PLIM_OK ||
        plim_accumulator_open(context, &options, &acc, &err) != PLIM_OK)
        return fprintf(stderr, "%s\n", err.text), 1;

    double w = 0;
    for (int epoch = 0; epoch < 60; epoch++) {
        double grad = 0, loss = 0;
        for (int at = 0; at < ROWS; at += MICRO) {
            int rows = ROWS - at < MICRO ? ROWS - at : MICRO;
            struct plim_micro_step micro = {.size = sizeof micro, .tokens = rows};
            if (plim_accumulator_next(acc, &micro, &err) != PLIM_OK) return fprintf(stderr, "%s\n", err.text), 1;
            grad += micro.loss_scale * backward(w, at, rows, &loss); /* gradients add up, scaled */
            if (!micro.step_due) continue;
            struct plim_window window = {.size = sizeof window, .grad_norm = fabs(grad), .overflow = !isfinite(grad)};
            if (plim_accumulator_finish(acc, &window, &err) != PLIM_OK) return fprintf(stderr, "%s\n", err.text), 1;
            if (window.take) w -= 0.01 * window.grad_scale * grad; /* the mean gradient, clipped */
            if (epoch % 20 == 0) printf("step %lld: loss %.4f, w %.4f\n", (long long)window.steps, loss / ROWS, w);
        }
    }
    printf("w = %.6f\n", w);
    plim_accumulator_close(acc);
    plim_context_close(context);
    return fabs(w - 3) > 1e-3;
}
