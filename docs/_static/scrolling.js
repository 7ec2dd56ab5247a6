// Lets the keyboard reach what is wider than its place, so that the arrow keys scroll it.
const wide = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    if (target.scrollWidth > target.clientWidth) target.tabIndex = 0;
    else target.removeAttribute("tabindex");
  }
});
document.addEventListener("DOMContentLoaded", () => {
  for (const part of document.querySelectorAll("pre, .table-wrapper")) wide.observe(part);
});
