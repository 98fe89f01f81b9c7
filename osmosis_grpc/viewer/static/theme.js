// Sets the theme before the first paint: the one that was chosen, or else the system's.
const chosen = localStorage.getItem("theme");
if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
